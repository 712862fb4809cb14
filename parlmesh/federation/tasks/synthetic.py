"""FedProx's Synthetic(alpha, beta) (Li et al. 2020, arXiv:1812.06127): each node draws its own data.

It needs no data set, so the number of nodes is unlimited.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import Field

from parlmesh.types import Array

from ..learning_task import Evaluated, FirstModel, Fitted, Part
from .classifier import Classifier
from .digits import LocalTrainingSettings, evaluate_classifier, fit_classifier
from .settings import parse_settings

_TEST_SHARE = 0.2
_NODES_REMEMBERED = 2_000


class SyntheticSettings(LocalTrainingSettings):
    """How nodes differ."""

    alpha: float = Field(default=1.0, ge=0.0)
    """How much the nodes' true models differ."""
    beta: float = Field(default=1.0, ge=0.0)
    """How much the nodes' inputs differ."""
    dimensions: int = Field(default=60, ge=1, le=10_000)
    """Values per input."""
    classes: int = Field(default=10, ge=2, le=1_000)
    """Number of labels."""
    least_samples: int = Field(default=50, ge=5, le=100_000)
    """Samples of the smallest node."""
    most_samples: int = Field(default=500, ge=5, le=100_000)
    """Samples of the largest node."""
    learning_rate: float = Field(default=0.01, gt=0.0, le=100.0)
    """Step size."""


class Synthetic:
    """Logistic regression."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = parse_settings(SyntheticSettings, "synthetic", settings)
        self._sizes = (self._settings.dimensions, self._settings.classes)
        self._data = lru_cache(maxsize=_NODES_REMEMBERED)(self._draw)

    def first(self, seed: int) -> FirstModel:
        """Zeros."""
        return FirstModel(Classifier(self._sizes).first(np.random.default_rng(seed)))

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """Trains on the node's samples."""
        inputs, labels, _, _ = self._data(part.number, part.seed)
        return fit_classifier(self._sizes, self._settings, tensors, inputs, labels, part)

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Evaluated:
        """Evaluates on the held-out fifth of the node's samples."""
        _, _, inputs, labels = self._data(part.number, part.seed)
        return evaluate_classifier(self._sizes, tensors, inputs, labels)

    def _draw(self, number: int, seed: int) -> tuple[Array, Array, Array, Array]:
        settings = self._settings
        rng = np.random.default_rng([seed, number])
        count = int(np.clip(rng.lognormal(4.0, 2.0) + settings.least_samples, 5, settings.most_samples))
        model_mean, input_mean = rng.normal(0.0, settings.alpha), rng.normal(0.0, settings.beta)
        weight = rng.normal(model_mean, 1.0, (settings.dimensions, settings.classes))
        bias = rng.normal(model_mean, 1.0, settings.classes)
        deviation = np.sqrt(np.arange(1, settings.dimensions + 1) ** -1.2)
        centre = rng.normal(input_mean, 1.0, settings.dimensions)
        inputs = (centre + deviation * rng.standard_normal((count, settings.dimensions))).astype(np.float32)
        labels = (inputs @ weight + bias).argmax(axis=1)
        split = max(1, int(count * (1.0 - _TEST_SHARE)))
        return inputs[:split], labels[:split], inputs[split:], labels[split:]
