"""Extremes: how far a value lies outside the range seen so far, in widths of that range."""

from typing import Any, ClassVar, Self

from .detector import EPSILON, score_of

LEAST = 30
_HALF = 0.25


class Extremes:
    """Lowest and highest value so far. A record scores once; the next must exceed it."""

    name: ClassVar[str] = "extremes"

    def __init__(self, count: int, low: float, high: float) -> None:
        self._count, self._low, self._high = count, low, high

    def update(self, time: float, value: float) -> float:
        """0 within the range, and until there are enough values."""
        score = 0.0
        if self._count >= LEAST:
            beyond = max(value - self._high, self._low - value, 0.0)
            score = score_of(beyond / (self._high - self._low + EPSILON), _HALF)
        first = self._count == 0
        self._low, self._high = (value, value) if first else (min(self._low, value), max(self._high, value))
        self._count += 1
        return score

    def state(self) -> dict[str, Any]:
        """Three numbers."""
        return {"count": self._count, "low": self._low, "high": self._high}

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """Restores the state from three numbers."""
        return cls(state["count"], state["low"], state["high"]) if state else cls(0, 0.0, 0.0)
