"""Finds processes that grow: resident memory, life by life, because a killed process starts again. Pure."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import linear_regression, median
from typing import NamedTuple

# Memory that a process fills just after its start does not count.
WARM_SECONDS = 60.0
# Shorter lives prove nothing.
LONG_SECONDS = 240.0
MOST_MIB_PER_MINUTE = 1.0
# A step, e.g. a library loaded for the first picture, is in one part of a life; a leak is in nearly all.
PARTS = 6
FEWEST_GROWING = 4
LEAST_STEP_MIB = 0.2
KIB_PER_KEPT_TASK = 2.0


class Sample(NamedTuple):
    """Resident MiB at a moment of the run, and in which of its lives the process was."""

    at: float
    mib: float
    life: int


class Growth(NamedTuple):
    """The growth in one life after it was warm."""

    life: int
    seconds: float
    before: float
    after: float
    mib_per_minute: float
    growing_parts: int

    def is_leak(self, allowed_mib: float) -> bool:
        """`allowed_mib` is how much the outcomes that it keeps may still fill."""
        return (
            self.seconds >= LONG_SECONDS
            and self.mib_per_minute > MOST_MIB_PER_MINUTE
            and self.growing_parts >= FEWEST_GROWING
            and self.after - self.before > allowed_mib
        )


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """One for every life that was warm for long enough to be measured."""
    found = []
    for life, group in groupby(samples, key=lambda sample: sample.life):
        lived = list(group)
        warm = [sample for sample in lived if sample.at - lived[0].at >= WARM_SECONDS]
        if len(warm) >= 2 * PARTS:
            found.append(_growth(life, warm))
    return found


def leaks(name: str, samples: Sequence[Sample], allowed_mib: float = 0.0) -> list[str]:
    """Lives that grew from part to part by more than the bound."""
    return [
        f"{name} grew from {growth.before:.0f} to {growth.after:.0f} MiB in life {growth.life}: "
        f"{growth.mib_per_minute:.1f} MiB a minute over {growth.seconds:.0f} s; the bound is {MOST_MIB_PER_MINUTE:g}"
        for growth in growths(samples)
        if growth.is_leak(allowed_mib)
    ]


def text(name: str, samples: Sequence[Sample]) -> str:
    """A readable summary: the whole, and the slope of the longest life."""
    sizes = f"{name} at most {max(sample.mib for sample in samples):.0f} MiB in {samples[-1].life} lives"
    longest = max(growths(samples), key=lambda growth: growth.seconds, default=None)
    if longest is None:
        return f"{sizes}, none long enough for a slope"
    return f"{sizes}, {longest.mib_per_minute:+.2f} MiB a minute in the longest of {longest.seconds:.0f} s"


def allowed_mib(kept_tasks: int) -> float:
    """How much a scheduler that keeps this many outcomes may grow."""
    return kept_tasks * KIB_PER_KEPT_TASK / 1024


def _growth(life: int, warm: Sequence[Sample]) -> Growth:
    parts = [warm[len(warm) * part // PARTS : len(warm) * (part + 1) // PARTS] for part in range(PARTS)]
    levels = [median(sample.mib for sample in part) for part in parts]
    slope, _ = linear_regression([sample.at / 60 for sample in warm], [sample.mib for sample in warm])
    growing = sum(after - before > LEAST_STEP_MIB for before, after in pairwise(levels))
    return Growth(life, warm[-1].at - warm[0].at, levels[0], levels[-1], slope, growing)
