"""The loss of `dqn` in torch, for networks that need autograd."""

import torch
from torch import Tensor

from .dqn import QTerms


def dueling(outputs: Tensor) -> Tensor:
    """Same as `dqn.dueling`."""
    advantages = outputs[:, :-1]
    return advantages + (outputs[:, -1:] - advantages.mean(dim=1, keepdim=True))


def huber_loss(
    values: Tensor, actions: Tensor, targets: Tensor, weights: Tensor | None, *, threshold: float
) -> tuple[Tensor, Tensor, QTerms]:
    """The scalar to minimise, the errors [B] and the terms without gradient. Shapes and formula as in `dqn`."""
    taken = values.gather(1, actions.unsqueeze(1)).squeeze(1)
    losses = torch.nn.functional.huber_loss(taken, targets, reduction="none", delta=threshold)
    loss = (losses if weights is None else losses * weights).mean()
    with torch.no_grad():
        errors = targets - taken
        terms = torch.stack((loss, taken.mean(), errors.abs().mean())).tolist()
    return loss, errors, QTerms(*terms)
