"""Page–Hinkley: detects small shifts of the mean, up or down, by accumulating them."""

import math
from typing import Any, ClassVar, Self

from .detector import EPSILON, score_of

WEIGHT = 0.005
LEAST = 100
DRIFT = 0.25
"""Deviation, in standard deviations, that does not accumulate."""
FORGET = 0.999
_LARGEST_STEP = 4.0
"""Limits a single value's contribution: one outlier is not a shift."""
_HALF = 60.0


class PageHinkley:
    """Two sums of standardised distances, one per direction, which decay and never fall below zero."""

    name: ClassVar[str] = "page_hinkley"

    def __init__(self, count: int, mean: float, variance: float, up: float, down: float) -> None:
        self._count, self._mean, self._variance, self._up, self._down = count, mean, variance, up, down

    def update(self, time: float, value: float) -> float:
        """0 until there are enough values."""
        away = value - self._mean
        score = 0.0
        if self._count >= LEAST:
            z = away / (math.sqrt(self._variance) + EPSILON)
            z = max(-_LARGEST_STEP, min(_LARGEST_STEP, z))
            self._up = max(0.0, FORGET * self._up + z - DRIFT)
            self._down = max(0.0, FORGET * self._down - z - DRIFT)
            score = score_of(max(self._up, self._down), _HALF)
        self._count += 1
        weight = max(WEIGHT, 1.0 / self._count)
        self._mean += weight * away
        self._variance = (1.0 - weight) * (self._variance + weight * away * away)
        return score

    def state(self) -> dict[str, Any]:
        """Five numbers."""
        return {
            "count": self._count,
            "mean": self._mean,
            "variance": self._variance,
            "up": self._up,
            "down": self._down,
        }

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """Restores the state from five numbers."""
        if state:
            return cls(state["count"], state["mean"], state["variance"], state["up"], state["down"])
        return cls(0, 0.0, 0.0, 0.0, 0.0)
