"""Twin delayed deterministic policy gradients (Fujimoto et al. 2018, arXiv:1802.09477) in torch, with hand-written
gradients. Actions are in −1..1.
"""

from torch import Tensor


def smoothed(actions: Tensor, noise: Tensor, *, spread: float, limit: float) -> Tensor:
    """Target actions plus clipped noise, from `noise` [B, D] of deviation 1: similar actions get similar values."""
    return (actions + (noise * spread).clamp(-limit, limit)).clamp(-1.0, 1.0)


def twin_targets(returns: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """returns + discounts · min Q_target(s', a') [B]; values are [2, B]. The discount is 0 after a termination."""
    return returns + discounts * next_values.amin(dim=0)


def policy_gradient(actions: Tensor, action_gradient: Tensor) -> Tensor:
    """d loss / d outputs [B, D] of loss = −mean Q(tanh(outputs)), for dQ / da [B, D]."""
    return action_gradient * (actions * actions - 1.0) / len(actions)
