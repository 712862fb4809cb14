"""Running mean and deviation of observations, merged batch by batch (Chan et al. 1983)."""

from collections.abc import Mapping

import numpy as np

from parlmesh.types import Array

_SMALLEST_DEVIATION = 1e-4
LARGEST_FEATURE = 10.0
"""Normalised observations are clipped to this many deviations."""


class Normaliser:
    """Uses float64: a float32 sum of squares would lose small features after some million steps."""

    def __init__(self, size: int, name: str = "normaliser") -> None:
        self._name = name
        self._count = 0.0
        self._mean = np.zeros(size)
        self._square = np.zeros(size)

    def add(self, rows: Array) -> None:
        """Merges a batch [B, size]."""
        if not len(rows):
            return
        count, mean = float(len(rows)), rows.mean(axis=0, dtype=np.float64)
        square = np.square(rows - mean).sum(axis=0, dtype=np.float64)
        total, shift = self._count + count, mean - self._mean
        self._square += square + shift * shift * (self._count * count / total)
        self._mean = self._mean + shift * (count / total)
        self._count = total

    def weights(self) -> dict[str, Array]:
        """The statistics in a policy version: (x − mean) · scale has deviation 1."""
        deviation = np.sqrt(self._square / self._count) if self._count else np.ones_like(self._mean)
        scale = 1.0 / np.maximum(deviation, _SMALLEST_DEVIATION)
        return {f"{self._name}.mean": self._mean.astype(np.float32), f"{self._name}.scale": scale.astype(np.float32)}

    def tensors(self) -> dict[str, Array]:
        """The complete state, for checkpoints."""
        return {
            f"{self._name}.count": np.array([self._count]),
            f"{self._name}.running_mean": self._mean.copy(),
            f"{self._name}.running_square": self._square.copy(),
        }

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._count = float(tensors[f"{self._name}.count"][0])
        self._mean = np.array(tensors[f"{self._name}.running_mean"])
        self._square = np.array(tensors[f"{self._name}.running_square"])
