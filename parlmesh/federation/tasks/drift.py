"""A model that every node shifts slightly: for trying out a federation, and for measuring one without training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from parlmesh.config import Config
from parlmesh.types import Array

from ..learning_task import Evaluated, FirstModel, Fitted, Part
from .settings import parse_settings


class DriftSettings(Config):
    """The model's size and shift."""

    parameters: int = Field(default=1_000, ge=1, le=1_000_000_000)
    """Number of values in the model."""
    step: float = Field(default=1e-3, ge=-1e6, le=1e6)
    """Node k adds k times this to every value."""
    samples: int = Field(default=100, ge=1)
    """Samples that every node claims."""


class Drift:
    """Adds node number · step to every value."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = parse_settings(DriftSettings, "drift", settings)

    def first(self, seed: int) -> FirstModel:
        """Zeros."""
        return FirstModel({"weight": np.zeros(self._settings.parameters, np.float32)})

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """One addition."""
        return Fitted(
            {"weight": tensors["weight"] + np.float32(part.number * self._settings.step)}, self._settings.samples
        )

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Evaluated:
        """The mean of the model."""
        return Evaluated(1, {"mean": float(tensors["weight"].mean(dtype=np.float64))})
