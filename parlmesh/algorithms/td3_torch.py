"""Twin delayed deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477) in torch, with gradients by
hand. Actions lie in −1..1.
"""

from torch import Tensor


def smoothed(actions: Tensor, noise: Tensor, *, spread: float, limit: float) -> Tensor:
    """Actions of the target policy with noise [B, D] of deviation 1: values of neighbours are alike."""
    return (actions + (noise * spread).clamp(-limit, limit)).clamp(-1.0, 1.0)


def twin_targets(returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """returns + discounts · min Q_target(s', a') [B]; values are [2, B]. A discount is 0 where the world ended."""
    return returns + discounts * next_values.amin(dim=0)


def policy_gradient(actions: Tensor, action_gradient: Tensor) -> Tensor:
    """d loss / d outputs [B, D] of loss = −mean Q(tanh(outputs)), for dQ / da [B, D]."""
    return action_gradient * (actions * actions - 1.0) / len(actions)
