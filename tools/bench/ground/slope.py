"""A straight line through samples over time: its slope with a confidence interval."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Slope:
    """Per unit of time; between `low` and `high` with 95 % confidence."""

    value: float
    low: float
    high: float


def slope(times: Sequence[float], values: Sequence[float], blocks: int = 20) -> Slope | None:
    """Least squares over means of blocks; None when there are too few.

    Neighbouring samples of one process are alike, so each counts little; means of blocks are nearly independent.
    """
    points = _blocks(times, values, min(blocks, len(times) // 2))
    if len(points) < LEAST_BLOCKS:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    line = statistics.linear_regression(xs, ys)
    freedom = len(points) - 2
    residuals = sum((y - line.slope * x - line.intercept) ** 2 for x, y in points)
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    margin = student(freedom) * math.sqrt(residuals / freedom / spread)
    return Slope(line.slope, line.slope - margin, line.slope + margin)


def student(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t, by the expansion of Cornish and Fisher."""
    z = statistics.NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _blocks(times: Sequence[float], values: Sequence[float], count: int) -> list[tuple[float, float]]:
    edges = [len(times) * index // max(1, count) for index in range(count + 1)]
    pairs = itertools.pairwise(edges)
    return [(statistics.fmean(times[a:b]), statistics.fmean(values[a:b])) for a, b in pairs if b > a]
