"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347): the loss alone, without data or optimiser."""

from typing import NamedTuple

import torch
from torch import Tensor


class PpoLoss(NamedTuple):
    """The scalar to minimise and, without gradient, what to watch."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    behaviour_log_prob: Tensor,
    advantages: Tensor,
    returns: Tensor,
    *,
    clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
) -> PpoLoss:
    """Clipped surrogate + value error − entropy over a minibatch of B steps.

    logits [B, actions]; all others [B]. `advantages` and `returns` carry no gradient. The KL estimate is Schulman's
    k3: mean(ratio − 1 − log ratio), never negative.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    log_ratio = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1) - behaviour_log_prob
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages)
    policy_loss = -surrogate.mean()
    value_loss = 0.5 * (values - returns).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
    return PpoLoss(total, policy_loss.detach(), value_loss.detach(), entropy.detach(), approx_kl, clip_fraction)
