"""Half-space trees (Tan, Ting & Liu 2011): how empty the region of space around a value is."""

from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np

TREES, DEPTH, WINDOW = 15, 6, 250
FEATURES = 3
"""The value, its change and a smoothed value."""
_SMOOTH = 0.2
_LEAVES = 1 << DEPTH
_SIZE = 2 * _LEAVES
_SMALL = 0.1 * WINDOW
"""A region with fewer values is not divided further."""


@lru_cache(maxsize=1)
def _trees() -> list[tuple[list[int], list[float]]]:
    """Feature and cut of every inner node of each tree; a fixed seed makes them the same everywhere."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, FEATURES, (TREES, _LEAVES))
    cuts = np.zeros((TREES, _LEAVES))
    for tree in range(TREES):
        # Each tree covers a slightly shifted space, as in the paper.
        centre = rng.uniform(0.0, 1.0, FEATURES)
        reach = 2.0 * np.maximum(centre, 1.0 - centre)
        low, high = {1: centre - reach}, {1: centre + reach}
        for corner in range(1, _LEAVES):
            feature = features[tree, corner]
            cut = (low[corner][feature] + high[corner][feature]) / 2.0
            cuts[tree, corner] = cut
            for side in (0, 1):
                child = 2 * corner + side
                low[child], high[child] = low[corner].copy(), high[corner].copy()
                (low if side else high)[child][feature] = cut
    return [(features[tree].tolist(), cuts[tree].tolist()) for tree in range(TREES)]


class HalfSpace:
    """Scores against the counts of the last full window; the current window replaces it once full."""

    name: ClassVar[str] = "half_space"

    def __init__(self, numbers: list[float], reference: list[list[int]], latest: list[list[int]]) -> None:
        # count, low, high, last value, smooth value
        self._numbers, self._reference, self._latest = numbers, reference, latest

    def update(self, time: float, value: float) -> float:
        """0 until the first window is full."""
        count, low, high, last, smooth = self._numbers
        first = count == 0
        smooth = value if first else smooth + _SMOOTH * (value - smooth)
        low, high = (value, value) if first else (min(low, value), max(high, value))
        width = high - low or 1.0
        change = 0.0 if first else value - last
        point = ((value - low) / width, 0.5 + change / width / 2.0, (smooth - low) / width)
        score = self._descend(point, judged=count >= WINDOW)
        count += 1
        if count % WINDOW == 0:
            self._reference, self._latest = self._latest, _empty()
        self._numbers = [count, low, high, value, smooth]
        return score

    def _descend(self, point: tuple[float, ...], *, judged: bool) -> float:
        """Counts the point in every region on its way down and returns the mean score over the trees."""
        total = 0.0
        for (features, cuts), reference, latest in zip(_trees(), self._reference, self._latest, strict=True):
            corner, depth, ended = 1, 0, not judged
            while True:
                latest[corner] += 1
                if not ended and (reference[corner] < _SMALL or depth == DEPTH):
                    total += 1.0 / (1.0 + reference[corner] * (1 << depth) / _SMALL)
                    ended = True
                if depth == DEPTH:
                    break
                corner = 2 * corner + (point[features[corner]] >= cuts[corner])
                depth += 1
        return total / TREES

    def state(self) -> dict[str, Any]:
        """Five numbers and two tables of counts."""
        return {"numbers": self._numbers, "reference": self._reference, "latest": self._latest}

    @classmethod
    def restored(cls, state: dict[str, Any] | None) -> Self:
        """Restores the state from the numbers and tables."""
        if state:
            return cls(list(state["numbers"]), _copied(state["reference"]), _copied(state["latest"]))
        return cls([0, 0.0, 0.0, 0.0, 0.0], _empty(), _empty())


def _empty() -> list[list[int]]:
    return [[0] * _SIZE for _ in range(TREES)]


def _copied(table: list[list[int]]) -> list[list[int]]:
    return [list(row) for row in table]
