"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): loss and gradient alone, in numpy.

`ppo_torch` is the same loss for networks that need autograd; a test holds the two together.
"""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array


class PpoTerms(NamedTuple):
    """Means over a minibatch."""

    total: float
    policy: float
    value: float
    entropy: float
    # Schulman's k3 estimate, mean(ratio − 1 − log ratio): never negative.
    approx_kl: float
    clip_fraction: float


def ppo_gradient(
    logits: Array,
    values: Array,
    actions: Array,
    behaviour_log_prob: Array,
    advantages: Array,
    returns: Array,
    *,
    clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
) -> tuple[Array, Array, PpoTerms]:
    """d loss / d logits [B, actions], d loss / d values [B], and the terms of the loss

    loss = −mean(min(ratio · A, clip(ratio) · A))
           + value_coefficient · ½ mean((V − R)²) − entropy_coefficient · mean(entropy).

    logits [B, actions]; all others [B].
    """
    size = len(actions)
    rows = np.arange(size)
    log_probs = logits - logits.max(axis=1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    probs = np.exp(log_probs)
    log_ratio = log_probs[rows, actions] - behaviour_log_prob
    ratio = np.exp(log_ratio)
    unclipped = ratio * advantages
    clipped = np.clip(ratio, 1.0 - clip, 1.0 + clip) * advantages
    surrogate = np.minimum(unclipped, clipped)
    # Where the clipped branch is the smaller, the loss is flat in the ratio.
    flow = np.where(unclipped <= clipped, unclipped, 0.0)
    flow *= -1.0 / size
    logits_gradient = probs * -flow[:, None]
    logits_gradient[rows, actions] += flow
    entropy = -(probs * log_probs).sum(axis=1)
    if entropy_coefficient:
        logits_gradient += (entropy_coefficient / size) * probs * (log_probs + entropy[:, None])
    error = values - returns
    policy_loss, value_loss = -float(surrogate.mean()), 0.5 * float(np.dot(error, error)) / size
    mean_entropy = float(entropy.mean())
    terms = PpoTerms(
        total=policy_loss + value_coefficient * value_loss - entropy_coefficient * mean_entropy,
        policy=policy_loss,
        value=value_loss,
        entropy=mean_entropy,
        approx_kl=float((ratio - 1.0 - log_ratio).mean()),
        clip_fraction=float(np.count_nonzero(np.abs(ratio - 1.0) > clip)) / size,
    )
    return logits_gradient, error * (value_coefficient / size), terms
