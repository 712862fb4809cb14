"""The loss of `ppo` in torch, for networks whose gradient autograd finds."""

import torch
from torch import Tensor

from .ppo import PpoTerms


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
) -> tuple[Tensor, PpoTerms]:
    """The scalar to minimise, and its terms without gradient. Shapes and formula as in `ppo.ppo_gradient`."""
    log_probs = torch.log_softmax(logits, dim=1)
    log_ratio = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1) - behaviour_log_prob
    ratio = log_ratio.exp()
    policy = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).mean()
    value = 0.5 * (values - returns).square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
        terms = torch.stack((total, policy, value, entropy, approx_kl, clip_fraction)).tolist()
    return total, PpoTerms(*terms)
