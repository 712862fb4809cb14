"""n-step returns (Sutton & Barto 2018, ch. 7; as in Rainbow, Hessel et al. 2018, arXiv:1710.02298) with two masks."""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array


class NStep(NamedTuple):
    """All [T, B]; target of step t = returns_t + discounts_t · Q(observation row `rows_t`)."""

    returns: Array
    discounts: Array
    rows: Array


def n_step(rewards: Array, terminated: Array, truncated: Array, *, steps: int, discount: float) -> NStep:
    """Sums of up to `steps` rewards, from rewards and flags [T, B].

    returns_t   = Σ_{i<k} discount^i · r_{t+i}
    discounts_t = discount^k · (1 − terminated_{t+k−1})
    rows_t      = t + k, the row that follows step t+k−1

    k is `steps`, or less where the episode or the fragment ends earlier. A truncated episode and the end of the
    fragment bootstrap from the last row; a terminated episode does not. No reward comes from beyond an end.
    """
    length = len(rewards)
    ended = terminated | truncated
    returns = rewards.astype(np.float32, copy=True)
    counts = np.ones(rewards.shape, np.int64)
    last_terminated = terminated.copy()
    going = ~ended
    for ahead in range(1, min(steps, length)):
        # Rows whose step `ahead` later is still in the fragment and in the episode.
        going = going[: length - ahead]
        returns[: length - ahead] += np.where(going, np.float32(discount**ahead) * rewards[ahead:], np.float32(0.0))
        counts[: length - ahead] += going
        last_terminated[: length - ahead] |= going & terminated[ahead:]
        going = going & ~ended[ahead:]
    discounts = np.where(last_terminated, 0.0, np.float64(discount) ** counts).astype(np.float32)
    return NStep(returns, discounts, np.arange(length)[:, None] + counts)
