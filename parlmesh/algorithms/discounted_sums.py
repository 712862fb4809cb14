"""Discounted rewards so far in each episode; their deviation is the natural scale of rewards."""

import numpy as np

from parlmesh.types import Array


def discounted_sums(rewards: Array, ended: Array, discount: float, before: Array | None = None) -> Array:
    """Rewards so far in each episode, older ones discounted, float64 [T, E]; the sums restart from 0 after an end.

    `before` [E] is the sum at the step before the first, 0 where an episode ended there.
    """
    sums = np.array(rewards, np.float64)
    if before is not None and len(sums):
        sums[0] += discount * before
    for step in range(1, len(sums)):
        sums[step] += np.where(ended[step - 1], 0.0, discount * sums[step - 1])
    return sums
