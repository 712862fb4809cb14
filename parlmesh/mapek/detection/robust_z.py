"""Robust z-score: the distance from the median of a window, in median absolute deviations."""

from bisect import bisect_left, insort
from collections import deque
from typing import Any, ClassVar, Self

from .detector import EPSILON, score_of

WINDOW = 288
LEAST = 30
_DEVIATIONS = 1.4826
"""Median absolute deviations per standard deviation, for a normal distribution."""
_FLOOR = 0.01
"""Least spread as a share of the window's range: a series that hardly moves has a deviation of zero."""
_HALF = 6.0


class RobustZ:
    """Keeps the window both by time and sorted. The spread comes from the quartiles, which needs no second sort."""

    name: ClassVar[str] = "robust_z"

    def __init__(self, values: list[float]) -> None:
        self._values = deque(values, WINDOW)
        self._sorted = sorted(values)

    def update(self, time: float, value: float) -> float:
        """0 until there are enough values."""
        score = score_of(abs(self._z(value)), _HALF) if len(self._values) >= LEAST else 0.0
        if len(self._values) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._values[0])]
        self._values.append(value)
        insort(self._sorted, value)
        return score

    def _z(self, value: float) -> float:
        ordered = self._sorted
        count = len(ordered)
        # For a symmetric distribution, half the interquartile range is the median absolute deviation.
        spread = (ordered[count * 3 // 4] - ordered[count // 4]) / 2 * _DEVIATIONS
        return (value - ordered[count // 2]) / (spread + _FLOOR * (ordered[-1] - ordered[0]) + EPSILON)

    def state(self) -> dict[str, Any]:
        """The window."""
        return {"values": list(self._values)}

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """Restores the state from the window."""
        return cls(list(state["values"]) if state else [])
