"""A rank's part of a gradient step, in proportion to its rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from parlmesh.types import Array

from .collectives import Group


class WeightedShare:
    """Turns means over a rank's own rows into means over all ranks, weighted by their rows."""

    def __init__(self, group: Group) -> None:
        self._group = group
        # This rank's share of the next step's rows, the index of its first row, and the number of all rows.
        self.weight, self.first, self.count = 1.0, 0, 0
        self.errors = np.zeros(0, np.float32)

    def __call__(self, gradient: Any, terms: Sequence[float], errors: Array | None = None) -> list[float]:
        """Changes the gradient in place; returns the terms. `errors` of a rank's rows become those of all rows."""
        flat = torch.from_numpy(gradient) if isinstance(gradient, np.ndarray) else gradient
        own = torch.tensor(list(terms), dtype=torch.float64)
        for values in (flat, own):
            # The gradient of a rank without rows is meaningless, and may not even be finite.
            values.mul_(self.weight) if self.weight else values.zero_()
            self._group.add_up(values)
        if errors is not None:
            self.errors = np.zeros(self.count, errors.dtype)
            self.errors[self.first : self.first + len(errors)] = errors
            self._group.add_up(torch.from_numpy(self.errors))
        return own.tolist()
