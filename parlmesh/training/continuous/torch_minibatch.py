"""A minibatch of a replay on the device that learns from it."""

from typing import NamedTuple

import torch

from ..replay_trainer import Minibatch


class TorchMinibatch(NamedTuple):
    """The columns of a minibatch; `weights` correct for how it was drawn, None where all count the same."""

    features: torch.Tensor
    next_features: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor | None


def on_device(minibatch: Minibatch, device: torch.device) -> TorchMinibatch:
    """The same numbers as tensors; nothing is copied on a processor."""
    columns = (
        minibatch.features,
        minibatch.next_features,
        minibatch.actions,
        minibatch.returns,
        minibatch.discounts,
    )
    weights = None if minibatch.weights is None else torch.from_numpy(minibatch.weights).to(device)
    return TorchMinibatch(*(torch.from_numpy(column).to(device) for column in columns), weights)
