"""How several processes share one gradient step: each computes the gradient of its rows, and all apply the sum. Knows
nothing about how they communicate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from parlmesh.types import Array

if TYPE_CHECKING:
    from torch import nn


class Share(Protocol):
    """Called between the gradient and its use."""

    def __call__(self, gradient: Any, terms: Sequence[float], errors: Array | None = None) -> list[float]:
        """Turns the flat gradient into that of all processes, in place; returns their terms and keeps their errors."""


def share_gradients(
    parameters: "Sequence[nn.Parameter]", share: Share, terms: Sequence[float], errors: Array | None = None
) -> list[float]:
    """Shares a step of torch's parameters, whose gradients are separate tensors."""
    import torch

    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in found])
    shared = share(flat, terms, errors)
    for gradient, part in zip(found, torch.split(flat, [gradient.numel() for gradient in found]), strict=True):
        gradient.copy_(part.view_as(gradient))
    return shared
