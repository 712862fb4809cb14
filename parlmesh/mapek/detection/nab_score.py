"""The Numenta Anomaly Benchmark's score: early alarms within a window score highest, and false alarms cost a little."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from parlmesh.types import Array

FALSE_POSITIVE, FALSE_NEGATIVE = 0.11, 1.0
"""Weights of the standard profile; a window detected at its first row scores 1."""
_OUTSIDE = -1


@dataclass(frozen=True)
class Series:
    """Scores of one file, and its anomaly windows as (first row, last row)."""

    name: str
    scores: Array
    windows: Sequence[tuple[int, int]]

    @property
    def probation(self) -> int:
        """Number of first rows that are not scored."""
        return min(int(0.15 * len(self.scores)), 750)

    @cached_property
    def worth(self) -> tuple[Array, Array]:
        """The window that an alarm at each row detects, and its score."""
        window = np.full(len(self.scores), _OUTSIDE)
        worth = np.full(len(self.scores), -FALSE_POSITIVE)
        for number, (first, last) in enumerate(sorted(self.windows)):
            width = last - first + 1
            for row in range(first, last + 1):
                window[row], worth[row] = number, sigmoid(-(last - row + 1) / width) / sigmoid(-1.0)
            # A later window overwrites its own rows.
            for row in range(last + 1, len(self.scores)):
                worth[row] = FALSE_POSITIVE * sigmoid((row - last) / max(width - 1, 1))
        return window, worth


def sigmoid(position: float) -> float:
    """Approaches 1 well before the end of a window, is 0 at its end and -1 well after it."""
    return -1.0 if position > 3.0 else 2.0 / (1.0 + math.exp(5.0 * position)) - 1.0


def raw_score(series: Series, threshold: float) -> float:
    """One file's sum over windows and false alarms."""
    window, worth = series.worth
    alarms = np.flatnonzero(np.asarray(series.scores) >= threshold)
    alarms = alarms[alarms >= series.probation]
    found, counted = window[alarms], worth[alarms]
    total = float(counted[found == _OUTSIDE].sum())
    for number in range(len(series.windows)):
        inside = counted[found == number]
        total += float(inside.max()) if len(inside) else -FALSE_NEGATIVE
    return total


def scaled(raw: float, windows: int) -> float:
    """0 for a detector that never raises an alarm, 100 for a perfect one."""
    null = -FALSE_NEGATIVE * windows
    return 100.0 * (raw - null) / (windows - null)


def thresholds_of(files: Sequence[Series], most: int = 200) -> list[float]:
    """Candidate thresholds: quantiles of the positive scores, denser towards the top."""
    scores = np.concatenate([np.asarray(series.scores)[series.probation :] for series in files])
    shares = 1.0 - np.geomspace(1e-5, 0.5, most)
    return sorted(set(np.quantile(scores[scores > 0], shares))) if (scores > 0).any() else [1.0]


def best_threshold(files: Sequence[Series], tried: Sequence[float]) -> float:
    """The threshold with the highest sum; among equals the middle one, which is farthest from both edges."""
    sums = [sum(raw_score(series, threshold) for series in files) for threshold in tried]
    top = max(sums)
    equal = [threshold for threshold, total in zip(tried, sums, strict=True) if total >= top - 1e-9]
    return equal[len(equal) // 2]


def leave_one_out(files: Sequence[Series]) -> tuple[float, list[tuple[str, float, float]]]:
    """The score when each file uses the others' threshold, and per file: name, threshold and raw score."""
    rows = []
    for held in files:
        others = [series for series in files if series is not held]
        threshold = best_threshold(others, thresholds_of(others))
        rows.append((held.name, threshold, raw_score(held, threshold)))
    return scaled(sum(row[2] for row in rows), sum(len(series.windows) for series in files)), rows
