"""The loss of `ppo` in torch, for networks that need autograd."""

import torch
from torch import Tensor

from .ppo import Objective, PpoTerms


def ppo_loss(
    log_prob: Tensor,
    entropy: Tensor,
    values: Tensor,
    behaviour_log_prob: Tensor,
    advantages: Tensor,
    returns: Tensor,
    *,
    clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
    old_values: Tensor | None = None,
    value_clip: float | None = None,
    objective: Objective = "clipped",
    log_ratio_penalty: float = 0.0,
) -> tuple[Tensor, PpoTerms]:
    """The scalar to minimise, and its terms without gradient. Shapes and formula as in `ppo.ppo_gradient`."""
    log_ratio = log_prob - behaviour_log_prob
    ratio = log_ratio.exp()
    if objective == "log_ratio":
        inside = torch.where((ratio - 1.0).abs() <= clip, ratio * advantages, 0.0)
        policy = -(inside - log_ratio_penalty * log_ratio.square()).mean()
    else:
        policy = -torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).mean()
    squares = (values - returns).square()
    if value_clip is not None:
        assert old_values is not None
        bounded = old_values + (values - old_values).clamp(-value_clip, value_clip)
        squares = torch.maximum(squares, (bounded - returns).square())
    value = 0.5 * squares.mean()
    mean_entropy = entropy.mean()
    total = policy + value_coefficient * value - entropy_coefficient * mean_entropy
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
        terms = torch.stack((total, policy, value, mean_entropy, approx_kl, clip_fraction)).tolist()
    return total, PpoTerms(*terms)
