"""V-trace (Espeholt et al. 2018, arXiv:1802.01561) with two masks: targets for experience from an older policy."""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array


class Vtrace(NamedTuple):
    """Both float32 [T, B]. The paper's policy gradient weights advantages by rho; here the caller does that, and may
    normalise them first."""

    advantages: Array
    targets: Array


def vtrace(
    log_rhos: Array,
    rewards: Array,
    values: Array,
    terminated: Array,
    truncated: Array,
    *,
    discount: float,
    smoothing: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> Vtrace:
    """Advantages and value targets; log_rhos, rewards and flags [T, B], values [T+1, B].

    rho_t   = min(clip_rho, exp(log_rhos_t)),  c_t = smoothing · min(clip_c, exp(log_rhos_t))
    delta_t = rho_t · (r_t + discount · (1 − terminated_t) · V_{t+1} − V_t)
    v_t     = V_t + delta_t + discount · (1 − terminated_t) · (1 − truncated_t) · c_t · (v_{t+1} − V_{t+1})
    A_t     = r_t + discount · (1 − terminated_t) · next_t − V_t

    where next_t is V_{t+1} + smoothing · (v_{t+1} − V_{t+1}) within an episode and V_{t+1} where it was truncated; the
    paper has v_{t+1}, which is the same without smoothing. log_rhos are the log-probability of the action under the
    trained policy minus that under the acting one. On-policy, with all clips at 1, both results equal those of GAE.
    """
    # A ratio too large for its type is infinite, and clipped like any other.
    with np.errstate(over="ignore"):
        ratios = np.exp(log_rhos)
    rhos, cs = np.minimum(clip_rho, ratios), smoothing * np.minimum(clip_c, ratios)
    bootstrap = np.where(terminated, 0.0, discount).astype(np.float32)
    carry = np.where(terminated | truncated, 0.0, discount * cs).astype(np.float32)
    errors = rhos * (rewards + bootstrap * values[1:] - values[:-1])
    corrections = errors.astype(np.float32)
    for step in range(len(rewards) - 2, -1, -1):
        corrections[step] += carry[step] * corrections[step + 1]
    targets = values[:-1] + corrections
    following = values[1:].astype(np.float32, copy=True)
    following[:-1] += np.where(truncated[:-1], 0.0, smoothing * corrections[1:])
    advantages = rewards + bootstrap * following - values[:-1]
    return Vtrace(advantages.astype(np.float32), targets)
