"""Reads a run's files: how fast it trained, and when it held its goal. Pure functions of the learner's files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Mark:
    """A version of the policy, and the steps and seconds of training that it took, evaluations left out."""

    version: int
    steps: int
    time: float


def marks(lines: Iterable[Mapping[str, Any]]) -> list[Mark]:
    """The updates among the lines of metrics.jsonl."""
    return [
        Mark(int(line["policy/version"]), int(line["step"]), float(line["run/elapsed_seconds"]))
        for line in lines
        if "policy/version" in line
    ]


def steps_per_second(updates: Sequence[Mark]) -> float:
    """From the first update to the last, so that the start of processes does not count."""
    if len(updates) < 2:
        raise ValueError(f"a rate needs two updates, the run had {len(updates)}")
    first, last = updates[0], updates[-1]
    return (last.steps - first.steps) / (last.time - first.time)


def seconds_until(updates: Sequence[Mark], reached: Mark) -> float:
    """Training time up to a mark. The first update counts as long as the others took on average."""
    first = updates[0]
    if reached.steps == first.steps:
        return first.steps / steps_per_second(updates)
    elapsed = reached.time - first.time
    return elapsed * reached.steps / (reached.steps - first.steps)


def held_version(evaluations: Sequence[tuple[int, float]], goal: float, in_a_row: int) -> int | None:
    """The version of the first of `in_a_row` evaluations (version, return) that all reached the goal."""
    streak: list[int] = []
    for version, mean_return in evaluations:
        streak = [*streak, version] if mean_return >= goal else []
        if len(streak) == in_a_row:
            return streak[0]
    return None
