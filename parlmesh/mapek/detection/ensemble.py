"""The ensemble on one metric: detectors vote, and a mean vote above all recent ones raises an alarm."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .detector import Detector
from .ewma import Ewma
from .extremes import Extremes
from .half_space import HalfSpace
from .page_hinkley import PageHinkley
from .robust_z import RobustZ
from .seasonal import Seasonal

DETECTORS: Mapping[str, type[Detector]] = {
    each.name: each for each in (Ewma, Extremes, HalfSpace, PageHinkley, RobustZ, Seasonal)
}
VOTERS = ("robust_z", "ewma", "seasonal", "extremes", "half_space")
"""Without Page–Hinkley: it detects slow shifts long after they begin, and its vote would delay the ensemble."""
QUIET = 432
"""Recent readings whose votes an alarm must exceed. At one per five minutes this is a day and a half, so a daily
pattern is reported once."""
FURTHEST = 100.0
"""Values are clipped to this multiple of the largest value so far (or of 1): one broken counter must not hide all later
values."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The ensemble's result for one value."""

    score: float
    """Mean vote, 0 to 1."""
    alarm: bool
    voters: str
    """The two highest votes, as text."""


class Quiet:
    """Tells whether a score exceeds all recent ones. Amortised constant work per score."""

    def __init__(self, readings: int, count: int = 0, highest: list[tuple[int, float]] | None = None) -> None:
        self._readings = readings
        self.count = count
        # Decreasing scores with their numbers; the first is the highest of the recent readings.
        self.highest = deque(highest or [])

    def broken_by(self, score: float) -> bool:
        """Whether the score exceeds all recent ones; it is remembered either way."""
        highest = self.highest
        self.count += 1
        while highest and highest[0][0] < self.count - self._readings:
            highest.popleft()
        novel = not highest or score > highest[0][1]
        while highest and highest[-1][1] <= score:
            highest.pop()
        highest.append((self.count, score))
        return novel


class Watch:
    """One metric of one node."""

    def __init__(
        self,
        detectors: Mapping[str, Detector],
        quiet: Quiet,
        *,
        probation: int,
        threshold: float,
        largest: float | None = None,
    ) -> None:
        self._detectors, self._quiet, self._largest = detectors, quiet, largest
        self._probation, self._threshold = probation, threshold

    def update(self, time: float, value: float) -> Reading:
        """Scores the value, then learns it."""
        if self._largest is not None:
            bound = FURTHEST * max(self._largest, 1.0)
            value = min(max(value, -bound), bound)
        self._largest = max(self._largest or 0.0, abs(value))
        votes = {name: detector.update(time, value) for name, detector in self._detectors.items()}
        score = sum(votes.values()) / len(votes)
        novel = self._quiet.broken_by(score)
        alarm = novel and score >= self._threshold and self._quiet.count > self._probation
        loud = sorted(votes, key=lambda name: -votes[name])[:2]
        return Reading(score, alarm, " and ".join(f"{name} {votes[name]:.2f}" for name in loud))

    def state(self) -> dict[str, Any]:
        """The state as JSON."""
        return {
            "detectors": {name: detector.state() for name, detector in self._detectors.items()},
            "count": self._quiet.count,
            "largest": self._largest,
            "highest": [list(each) for each in self._quiet.highest],
        }

    @classmethod
    def restored(
        cls,
        state: Mapping[str, Any] | None,
        *,
        voters: tuple[str, ...] = VOTERS,
        probation: int = 100,
        threshold: float = 0.34,
        quiet: int = QUIET,
    ) -> Self:
        """The watch with that state; a voter without a saved state starts fresh."""
        states = (state or {}).get("detectors", {})
        highest = [(int(number), float(score)) for number, score in (state or {}).get("highest", [])]
        return cls(
            {name: DETECTORS[name].restored(states.get(name)) for name in voters},
            Quiet(quiet, int((state or {}).get("count", 0)), highest),
            probation=probation,
            threshold=threshold,
            largest=(state or {}).get("largest"),
        )
