"""Repeated values of one figure: the median is the figure, the extremes are its spread."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Samples:
    """At least one value."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a figure needs at least one value")

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


def ratio(over: Samples | None, under: Samples | None) -> float | None:
    """The ratio of the medians; None if one of them is missing."""
    return None if over is None or under is None else over.median / under.median


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0..1] of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
