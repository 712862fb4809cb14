"""Seasonal: the distance from the usual value at this time of day."""

import math
from typing import Any, ClassVar, Self

from .detector import EPSILON, score_of

BINS = 48
WEIGHT = 0.02
LEAST = 18
"""Values that a part of the day needs before it is scored."""
_DAY_SECONDS = 86_400
_FLOOR = 0.1
"""Share of the whole day's deviation added to the spread, for parts of the day that hardly vary."""
_HALF = 6.0


class Seasonal:
    """Exponentially weighted mean and variance, per half hour and over the whole day."""

    name: ClassVar[str] = "seasonal"

    def __init__(self, bins: list[list[float]], whole: list[float]) -> None:
        self._bins, self._whole = bins, whole

    def update(self, time: float, value: float) -> float:
        """0 until this part of the day has enough values."""
        part = self._bins[int(time % _DAY_SECONDS) * BINS // _DAY_SECONDS]
        count, mean, variance = part
        score = 0.0
        if count >= LEAST:
            spread = math.sqrt(variance) + _FLOOR * math.sqrt(self._whole[2]) + EPSILON
            score = score_of(abs(value - mean) / spread, _HALF)
        _learn(part, value)
        _learn(self._whole, value)
        return score

    def state(self) -> dict[str, Any]:
        """Three numbers for each part of the day."""
        return {"bins": self._bins, "whole": self._whole}

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """Restores the state from those numbers."""
        if state:
            return cls([list(each) for each in state["bins"]], list(state["whole"]))
        return cls([[0.0, 0.0, 0.0] for _ in range(BINS)], [0.0, 0.0, 0.0])


def _learn(part: list[float], value: float) -> None:
    part[0] += 1.0
    weight, away = max(WEIGHT, 1.0 / part[0]), value - part[1]
    part[1] += weight * away
    part[2] = (1.0 - weight) * (part[2] + weight * away * away)
