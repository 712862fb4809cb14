"""EWMA control chart: the distance from an exponentially weighted mean, in weighted standard deviations."""

import math
from typing import Any, ClassVar, Self

from .detector import EPSILON, score_of

WEIGHT = 0.02
LEAST = 30
_HALF = 6.0


class Ewma:
    """Exponentially weighted mean and variance over about the last fifty values."""

    name: ClassVar[str] = "ewma"

    def __init__(self, count: int, mean: float, variance: float) -> None:
        self._count, self._mean, self._variance = count, mean, variance

    def update(self, time: float, value: float) -> float:
        """0 until there are enough values."""
        away = value - self._mean
        score = 0.0
        if self._count >= LEAST:
            score = score_of(abs(away) / (math.sqrt(self._variance) + EPSILON), _HALF)
        self._count += 1
        # The first values get equal weights, so that the estimate starts as a plain mean.
        weight = max(WEIGHT, 1.0 / self._count)
        self._mean += weight * away
        self._variance = (1.0 - weight) * (self._variance + weight * away * away)
        return score

    def state(self) -> dict[str, Any]:
        """Three numbers."""
        return {"count": self._count, "mean": self._mean, "variance": self._variance}

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """Restores the state from three numbers."""
        return cls(state["count"], state["mean"], state["variance"]) if state else cls(0, 0.0, 0.0)
