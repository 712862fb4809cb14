"""One set of operations for numpy arrays and torch tensors. Uses torch if given a tensor, and never imports it."""

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from parlmesh.errors import InvalidInput

Values: TypeAlias = Any
"""A number, a sequence of numbers, a numpy array or a torch tensor."""


def like(values: Sequence[Values | None], device: str | None = None) -> Any:
    """The operations for these values: torch's if one of them is a tensor, numpy's otherwise."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(value, torch.Tensor) for value in values):
        return _Torch(torch, _device(torch, values, device))
    return _Numpy()


def _device(torch: Any, values: Sequence[Values | None], device: str | None) -> Any:
    if device is not None:
        return torch.device(device)
    return next(value.device for value in values if isinstance(value, torch.Tensor))


class _Numpy:
    """numpy, for the operations whose names differ in torch."""

    def array(self, name: str, value: Values) -> Any:
        try:
            return _finite(name, np.asarray(value, np.float64), np)
        except (TypeError, ValueError):
            raise InvalidInput(f"{name} must be numbers, got {value!r:.60}") from None

    def clip(self, value: Any, low: float, high: float) -> Any:
        return np.clip(value, low, high)

    def mean(self, value: Any) -> Any:
        return value.mean(axis=-1)

    def largest(self, value: Any) -> Any:
        """The maximum over the last axis; 0 if it is empty."""
        return value.max(axis=-1) if value.shape[-1] else np.zeros(value.shape[:-1])

    def zeros_like(self, value: Any) -> Any:
        return np.zeros_like(value)

    def where(self, condition: Any, value: Any, other: Any) -> Any:
        return np.where(condition, value, other)


class _Torch:
    """torch, on one device."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device

    def array(self, name: str, value: Values) -> Any:
        try:
            tensor = self._torch.as_tensor(value, device=self._device)
        except (TypeError, ValueError, RuntimeError):
            raise InvalidInput(f"{name} must be numbers, got {value!r:.60}") from None
        if not tensor.is_floating_point():
            tensor = tensor.to(self._torch.float32)
        return _finite(name, tensor, self._torch)

    def clip(self, value: Any, low: float, high: float) -> Any:
        return self._torch.clamp(value, low, high)

    def mean(self, value: Any) -> Any:
        return value.mean(dim=-1)

    def largest(self, value: Any) -> Any:
        """The maximum over the last axis; 0 if it is empty."""
        return value.amax(dim=-1) if value.shape[-1] else value.new_zeros(value.shape[:-1])

    def zeros_like(self, value: Any) -> Any:
        return self._torch.zeros_like(value)

    def where(self, condition: Any, value: Any, other: Any) -> Any:
        return self._torch.where(condition, value, other)


def _finite(name: str, values: Any, library: Any) -> Any:
    if not bool(library.isfinite(values).all()):
        raise InvalidInput(f"{name} must be finite, got {values.tolist()}")
    return values


def at_least_zero(name: str, values: Any) -> Any:
    """The values; raises InvalidInput if one is negative."""
    if bool((values < 0).any()):
        raise InvalidInput(f"{name} must be >= 0, got {values.tolist()}")
    return values


def check_lengths(**values: Any) -> None:
    """Checks that all batches have the same number of episodes; scalars apply to all."""
    lengths = {name: len(value) for name, value in values.items() if value is not None and value.ndim}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InvalidInput(f"batches must have the same number of episodes, got {said}")
