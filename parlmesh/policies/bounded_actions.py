"""Actions in −1..1, which are scaled to the environment's bounds: drawn from a squashed Gaussian, or chosen with noise.
The share of steps with a uniformly random action is part of a policy version, as with epsilon-greedy values.
"""

import math

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .distributions import LOG_TWO_PI

LEAST_LOG_STD, MOST_LOG_STD = -20.0, 2.0
_LOG_TWO = math.log(2.0)
# Densities grow without bound towards the ends; values beyond this teach nothing.
_LARGEST_LOG_PROB = 50.0


class SquashedGaussian:
    """tanh(mean + std · noise), means and log-deviations side by side (Haarnoja et al. 2018, arXiv:1812.05905)."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = _share("policy.epsilon", epsilon)

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions [B, D] and the log-densities [B] with which they are drawn, from outputs [B, 2 D]."""
        mean, log_std = _halves(outputs)
        noise = rng.standard_normal(mean.shape, dtype=np.float32)
        drawn = mean + np.exp(log_std) * noise
        density = -0.5 * (noise * noise + LOG_TWO_PI) - log_std - log_slope(drawn)
        return _mixed(np.tanh(drawn), density.sum(axis=1), self._epsilon, rng)

    def mode(self, outputs: Array) -> Array:
        """The squashed mean."""
        action: Array = np.tanh(_halves(outputs)[0])
        return action


class NoisyMean:
    """tanh(mean) plus Gaussian noise, cut off at −1 and 1 (Fujimoto et al. 2018, arXiv:1802.09477)."""

    def __init__(self, epsilon: float, noise: float) -> None:
        self._epsilon = _share("policy.epsilon", epsilon)
        self._noise = _share("policy.noise", noise)

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions [B, D] and the log-densities [B] of the noise before clipping, 0 without noise."""
        noise = rng.standard_normal(outputs.shape, dtype=np.float32)
        action = np.clip(np.tanh(outputs) + self._noise * noise, -1.0, 1.0)
        density = np.zeros(len(outputs), np.float32)
        if self._noise:
            density = (-0.5 * (noise * noise + LOG_TWO_PI) - math.log(self._noise)).sum(axis=1)
        return _mixed(action, density, self._epsilon, rng)

    def mode(self, outputs: Array) -> Array:
        """The action without noise."""
        action: Array = np.tanh(outputs)
        return action


def log_slope(drawn: Array) -> Array:
    """log(1 − tanh²), exact even where tanh rounds to 1."""
    slope: Array = 2.0 * (_LOG_TWO - drawn - np.logaddexp(0.0, -2.0 * drawn))
    return slope


def scale(action: Array, low: Array, high: Array) -> Array:
    """Scales from −1..1 to the bounds."""
    scaled: Array = low + (action + 1.0) * 0.5 * (high - low)
    return scaled


def _halves(outputs: Array) -> tuple[Array, Array]:
    size = outputs.shape[1] // 2
    return outputs[:, :size], np.clip(outputs[:, size:], LEAST_LOG_STD, MOST_LOG_STD)


def _mixed(action: Array, density: Array, epsilon: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Replaces a share epsilon of rows with uniformly random actions."""
    size = action.shape[1]
    if epsilon:
        exploring = rng.random(len(action), dtype=np.float32) < epsilon
        anything = rng.random(action.shape, dtype=np.float32) * 2.0 - 1.0
        action = np.where(exploring[:, None], anything, action)
        density = np.where(exploring, -size * _LOG_TWO, density)
    limit = _LARGEST_LOG_PROB * size
    return action, np.clip(density, -limit, limit).astype(np.float32, copy=False)


def _share(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise InvalidInput(f"{name} must be in 0..1, got {value:g}", reason="POLICY_SPEC")
    return value
