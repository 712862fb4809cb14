"""The order in which a root's moves are tried: sequential halving (Karnin et al. 2013), as in Gumbel AlphaZero."""

import math
from functools import cache

import numpy as np

from parlmesh.types import Array


def visits_before(considered: int, simulations: int) -> list[int]:
    """For each simulation: how often the move it tries was tried before. All considered moves get equal tries, then the
    better half of them, until two are left."""
    if considered <= 1:
        return list(range(simulations))
    halvings = math.ceil(math.log2(considered))
    found: list[int] = []
    visits = [0] * considered
    left = considered
    while len(found) < simulations:
        for _ in range(max(1, simulations // (halvings * left))):
            found += visits[:left]
            visits[:left] = [visit + 1 for visit in visits[:left]]
        left = max(2, left // 2)
    return found[:simulations]


@cache
def schedules(most: int, simulations: int) -> Array:
    """[most + 1, simulations]; row n is `visits_before` for n considered moves."""
    found = np.array([visits_before(considered, simulations) for considered in range(most + 1)], np.int32)
    found.flags.writeable = False
    return found
