"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): only the loss and its gradient, in numpy.

`ppo_torch` is the same loss for networks that need autograd; a test compares the two.
"""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from parlmesh.types import Array

Objective: TypeAlias = Literal["clipped", "log_ratio"]


class PpoTerms(NamedTuple):
    """Means over a minibatch."""

    total: float
    policy: float
    value: float
    entropy: float
    # Schulman's k3 estimate, mean(ratio − 1 − log ratio): never negative.
    approx_kl: float
    clip_fraction: float


class PpoGradient(NamedTuple):
    """d loss / d log_prob [B], d loss / d each row's entropy, d loss / d values [B]."""

    log_prob: Array
    entropy: float
    values: Array


def ppo_gradient(
    log_prob: Array,
    entropy: Array,
    values: Array,
    behaviour_log_prob: Array,
    advantages: Array,
    returns: Array,
    *,
    clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
    old_values: Array | None = None,
    value_clip: float | None = None,
    objective: Objective = "clipped",
    log_ratio_penalty: float = 0.0,
) -> tuple[PpoGradient, PpoTerms]:
    """Gradient and terms of the loss, for B steps; all inputs [B].

    loss = −mean(min(ratio · A, clip(ratio) · A))
           + value_coefficient · ½ mean((V − R)²) − entropy_coefficient · mean(entropy),
    ratio = exp(log_prob − behaviour_log_prob).

    The objective log_ratio is that of Kimi K2.5 (arXiv:2602.02276, eq. 1): a step whose ratio is outside 1 ± clip gives
    no gradient, whatever the sign of its advantage, and the squared log-ratio costs log_ratio_penalty:
    −mean(inside · ratio · A) + log_ratio_penalty · mean(log_ratio²).

    With a value_clip, the larger of two errors counts: that of V, and that of V kept within value_clip of the old
    value.
    """
    size = len(log_prob)
    log_ratio = log_prob - behaviour_log_prob
    ratio = np.exp(log_ratio)
    unclipped = ratio * advantages
    clipped = np.clip(ratio, 1.0 - clip, 1.0 + clip) * advantages
    if objective == "log_ratio":
        inside = np.where(np.abs(ratio - 1.0) <= clip, unclipped, 0.0)
        surrogate, flow = inside - log_ratio_penalty * log_ratio**2, inside - 2.0 * log_ratio_penalty * log_ratio
    else:
        # Where the clipped branch is smaller, the loss does not depend on the ratio.
        surrogate, flow = np.minimum(unclipped, clipped), np.where(unclipped <= clipped, unclipped, 0.0)
    flow = flow * (-1.0 / size)
    error, held = values - returns, None
    if value_clip is not None:
        assert old_values is not None
        bounded = old_values + np.clip(values - old_values, -value_clip, value_clip) - returns
        held = np.abs(bounded) > np.abs(error)
        error = np.where(held, bounded, error)
    policy_loss = -float(surrogate.mean())
    value_loss = 0.5 * float(np.dot(error, error)) / size
    mean_entropy = float(entropy.mean())
    terms = PpoTerms(
        total=policy_loss + value_coefficient * value_loss - entropy_coefficient * mean_entropy,
        policy=policy_loss,
        value=value_loss,
        entropy=mean_entropy,
        approx_kl=float((ratio - 1.0 - log_ratio).mean()),
        clip_fraction=float(np.count_nonzero(np.abs(ratio - 1.0) > clip)) / size,
    )
    # A clipped value gives no gradient.
    pull = error if held is None else np.where(held, np.float32(0.0), error)
    return PpoGradient(flow, -entropy_coefficient / size, pull * (value_coefficient / size)), terms
