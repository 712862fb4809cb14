"""Server optimisers: a plain step, or one with momentum (Reddi et al. 2021, arXiv:2003.00295).

All work on blocks, in float64; the state is one vector per moment, as long as the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

Moments: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ServerOptimiser:
    """`step(joint, moments)` returns the change of the model; it updates the moments in place."""

    moments: tuple[str, ...]
    step: Callable[[Array, Moments], Array]

    def initial(self, size: int) -> dict[str, Array]:
        """Moments before the first round."""
        return {name: np.zeros(size, np.float32) for name in self.moments}


def fedavg(learning_rate: float = 1.0) -> ServerOptimiser:
    """w += η Δ. With η = 1 the new model is the mean of the nodes' models."""
    return ServerOptimiser((), lambda joint, _: learning_rate * joint)


def fedavgm(learning_rate: float = 1.0, momentum: float = 0.9) -> ServerOptimiser:
    """m = β m + Δ, w += η m (Hsu et al. 2019, arXiv:1909.06335)."""

    def step(joint: Array, moments: Moments) -> Array:
        mean = momentum * moments["mean"].astype(np.float64) + joint
        moments["mean"][...] = mean
        return learning_rate * mean

    return ServerOptimiser(("mean",), step)


def nesterov(learning_rate: float = 0.7, momentum: float = 0.9) -> ServerOptimiser:
    """m = β m + Δ, w += η (Δ + β m): the outer step of DiLoCo (Douillard et al. 2023, arXiv:2311.08105)."""

    def step(joint: Array, moments: Moments) -> Array:
        mean = momentum * moments["mean"].astype(np.float64) + joint
        moments["mean"][...] = mean
        return learning_rate * (joint + momentum * mean)

    return ServerOptimiser(("mean",), step)


def fedadam(learning_rate: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> ServerOptimiser:
    """m = β₁ m + (1 − β₁) Δ, v = β₂ v + (1 − β₂) Δ², w += η m / (√v + τ)."""

    def step(joint: Array, moments: Moments) -> Array:
        square = beta2 * moments["square"].astype(np.float64) + (1.0 - beta2) * joint * joint
        return _adaptive(joint, square, moments, learning_rate, beta1, tau)

    return ServerOptimiser(("mean", "square"), step)


def fedyogi(learning_rate: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> ServerOptimiser:
    """Like FedAdam with v −= (1 − β₂) Δ² sign(v − Δ²): v grows as fast but shrinks more slowly."""

    def step(joint: Array, moments: Moments) -> Array:
        old, new = moments["square"].astype(np.float64), joint * joint
        square = old - (1.0 - beta2) * new * np.sign(old - new)
        return _adaptive(joint, square, moments, learning_rate, beta1, tau)

    return ServerOptimiser(("mean", "square"), step)


def server_optimiser(name: str, *, learning_rate: float, momentum: float, beta2: float, tau: float) -> ServerOptimiser:
    """The optimiser of that name."""
    match name:
        case "fedavg":
            return fedavg(learning_rate)
        case "fedavgm":
            return fedavgm(learning_rate, momentum)
        case "nesterov":
            return nesterov(learning_rate, momentum)
        case "fedadam":
            return fedadam(learning_rate, momentum, beta2, tau)
        case "fedyogi":
            return fedyogi(learning_rate, momentum, beta2, tau)
    raise InvalidInput(f"server optimiser must be fedavg, fedavgm, nesterov, fedadam or fedyogi, got {name!r}")


def _adaptive(joint: Array, square: Array, moments: Moments, learning_rate: float, beta1: float, tau: float) -> Array:
    mean = beta1 * moments["mean"].astype(np.float64) + (1.0 - beta1) * joint
    moments["mean"][...] = mean
    moments["square"][...] = square
    return learning_rate * mean / (np.sqrt(np.maximum(square, 0.0)) + tau)
