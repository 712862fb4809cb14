"""Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438) with two masks."""

import numpy as np

from parlmesh.types import Array


def gae(
    rewards: Array, values: Array, terminated: Array, truncated: Array, *, discount: float, smoothing: float
) -> tuple[Array, Array]:
    """Advantages and value targets, both float32 [T, B], from rewards and flags [T, B] and values [T+1, B].

    delta_t = r_t + discount · (1 − terminated_t) · V_{t+1} − V_t
    A_t     = delta_t + discount · smoothing · (1 − terminated_t) · (1 − truncated_t) · A_{t+1}

    A truncated episode bootstraps from the value of the next observation; a terminated one has no value beyond its end.
    Neither lets an advantage leak from the next episode.
    """
    bootstrap = np.where(terminated, 0.0, discount).astype(np.float32)
    carry = np.where(terminated | truncated, 0.0, discount * smoothing).astype(np.float32)
    advantages = rewards + bootstrap * values[1:] - values[:-1]
    for step in range(len(rewards) - 2, -1, -1):
        advantages[step] += carry[step] * advantages[step + 1]
    return advantages, advantages + values[:-1]
