"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) in torch, with hand-written gradients: autograd would also
compute the critics' weight gradients when only the action's gradient is needed. Actions are in −1..1."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_LOG_TWO, _LOG_TWO_PI = math.log(2.0), math.log(2.0 * math.pi)
LEAST_LOG_STD, MOST_LOG_STD = -20.0, 2.0


class Drawn(NamedTuple):
    """Actions [B, D], their log-densities [B], and std · noise [B, D]."""

    actions: Tensor
    log_probs: Tensor
    spread: Tensor


def squashed_gaussian(outputs: Tensor, noise: Tensor) -> Drawn:
    """a = tanh(u), u = mean + std · noise, from outputs [B, 2 D] and noise [B, D].

    log π(a) = Σ_d −½ noise² − log std − ½ log 2π − log(1 − tanh² u)
    """
    size = noise.shape[1]
    log_std = outputs[:, size:].clamp(LEAST_LOG_STD, MOST_LOG_STD)
    spread = log_std.exp() * noise
    drawn = outputs[:, :size] + spread
    # 1 − tanh² rounds to 0 far out; its logarithm in this form is exact.
    log_slope = 2.0 * (_LOG_TWO - drawn - torch.nn.functional.softplus(-2.0 * drawn))
    log_probs = -(0.5 * noise * noise + log_std + log_slope).sum(dim=1) - 0.5 * size * _LOG_TWO_PI
    return Drawn(torch.tanh(drawn), log_probs, spread)


def policy_gradient(outputs: Tensor, drawn: Drawn, action_gradient: Tensor, temperature: float) -> Tensor:
    """d loss / d outputs [B, 2 D] of loss = mean(α · log π(a) − Q(a)), for dQ / da [B, D].

    d/du = α · 2 tanh u − dQ/da · (1 − tanh² u); the mean gets all of it, log std its share spread · d/du, and −α.
    """
    size, actions = action_gradient.shape[1], drawn.actions
    flow = 2.0 * temperature * actions - action_gradient * (1.0 - actions * actions)
    log_std = outputs[:, size:]
    free = (log_std >= LEAST_LOG_STD) & (log_std <= MOST_LOG_STD)
    return torch.cat((flow, (flow * drawn.spread - temperature) * free), dim=1) / len(outputs)


def soft_targets(
    returns: Tensor, discounts: Tensor, next_values: Tensor, next_log_probs: Tensor, temperature: float
) -> Tensor:
    """returns + discounts · (min Q_target(s', a') − α · log π(a')) [B]; values are [2, B].

    The discount is 0 where the episode terminated, but not where it was truncated.
    """
    return returns + discounts * (next_values.amin(dim=0) - temperature * next_log_probs)
