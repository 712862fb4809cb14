"""A minibatch of a replay on the device that learns from it."""

from typing import NamedTuple

import torch

from parlmesh.types import Array

from ..replay_trainer import Minibatch


class TorchMinibatch(NamedTuple):
    """The columns of a minibatch; `weights` correct for how it was drawn, None when all count the same."""

    features: torch.Tensor
    next_features: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor | None


def on_device(minibatch: Minibatch, device: torch.device) -> TorchMinibatch:
    """The minibatch as tensors; on the CPU, nothing is copied."""

    def moved(column: Array) -> torch.Tensor:
        return torch.from_numpy(column).to(device)

    return TorchMinibatch(
        moved(minibatch.features),
        moved(minibatch.next_features),
        moved(minibatch.actions),
        moved(minibatch.returns),
        moved(minibatch.discounts),
        None if minibatch.weights is None else moved(minibatch.weights),
    )
