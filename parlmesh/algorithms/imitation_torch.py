"""AlphaZero's loss in torch: learns a better policy from its probabilities, and values from outcomes."""

import torch
from torch import Tensor

from .ppo import PpoTerms


def imitation_loss(
    log_probs: Tensor,
    values: Tensor,
    actions: Tensor,
    chances: Tensor,
    returns: Tensor,
    *,
    value_coefficient: float,
    entropy_coefficient: float,
) -> tuple[Tensor, PpoTerms]:
    """Cross-entropy of log_probs [B, choices] to `chances` [B, K] of `actions` [B, K], and half the squared error of
    values [B]. The policy term is the divergence from the better policy, 0 where they agree."""
    likely = (chances * log_probs.gather(1, actions.long())).sum(dim=1)
    value = 0.5 * (values - returns).square().mean()
    # A forbidden action has probability 0, and 0 times its logarithm must be 0.
    mean_entropy = -torch.where(log_probs > -1e4, log_probs.exp() * log_probs, 0.0).sum(dim=1).mean()
    cross = -likely.mean()
    total = cross + value_coefficient * value - entropy_coefficient * mean_entropy
    with torch.no_grad():
        divergence = cross + torch.xlogy(chances, chances).sum(dim=1).mean()
        found = torch.stack((total, divergence, value, mean_entropy)).tolist()
    # Nothing is clipped, and there is no ratio to the behaviour policy.
    return total, PpoTerms(*(*found, 0.0, 0.0))
