"""Which nodes a round asks. Pure: the same seed, round and nodes give the same choice."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from parlmesh.federation.config import SelectionConfig


def select(nodes: Sequence[str], config: SelectionConfig, seed: int, number: int) -> tuple[tuple[str, ...], int]:
    """The nodes to ask, sorted, and how many of their updates are wanted."""
    ordered = sorted(nodes)
    wanted = config.wanted(len(ordered))
    asked = min(len(ordered), math.ceil(wanted * config.over_selection - 1e-9))
    if asked == len(ordered):
        return tuple(ordered), wanted
    chosen = np.random.default_rng([seed, number]).choice(len(ordered), asked, replace=False)
    return tuple(ordered[index] for index in sorted(chosen)), wanted


def nonce_for(entropy: str, node_id: str, count: int) -> str:
    """32 hexadecimal digits that nobody can guess who does not know the entropy."""
    return hashlib.sha256(f"{entropy}/{count}/{node_id}".encode()).hexdigest()[:32]
