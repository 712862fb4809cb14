"""A run's curves, read from the metrics.jsonl that its recorder writes, so that they survive a restart."""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlmesh.learning_curve import RETURNS, returns_figure

_NOT_CURVES = ("time", "step")


@dataclass(slots=True)
class Curve:
    """Points with ascending steps."""

    steps: "array[int]" = field(default_factory=lambda: array("Q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def go_back_before(self, step: int) -> None:
        """Forgets the points that an earlier start of the run recorded after the checkpoint from which the next one
        resumed."""
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self.values.pop()

    def thinned(self, most: int) -> "Curve":
        """At most this many points, evenly spaced, including the first and the last."""
        count = len(self.steps)
        if count <= most:
            return self
        chosen = [round(index * (count - 1) / max(most - 1, 1)) for index in range(most)]
        steps, values = (self.steps[index] for index in chosen), (self.values[index] for index in chosen)
        return Curve(array("Q", steps), array("d", values))


def read_curves(path: Path, names: Sequence[str] = (), first_step: int = 0, last_step: int = 0) -> dict[str, Curve]:
    """Chosen curves, or all, in a range of steps; `last_step` 0 = to the end. Missing curves are empty."""
    wanted, curves = set(names), {name: Curve() for name in names}
    for row in _rows(path):
        step = int(row["step"])
        for name in row.keys() & wanted if wanted else row.keys() - set(_NOT_CURVES):
            curve = curves.setdefault(name, Curve())
            curve.go_back_before(step)
            if first_step <= step and (not last_step or step <= last_step):
                curve.steps.append(step)
                curve.values.append(float(row[name]))
    return curves


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Skips lines that a crash cut off, and values that are not numbers."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from _parsed(lines)


def _parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = row.get("step") if isinstance(row, dict) else None
        if isinstance(step, int) and 0 <= step < 1 << 64:
            yield {name: value for name, value in row.items() if isinstance(value, (int, float))}


# More than a picture of this width can show.
_MOST_POINTS = 5_000


def draw_learning_curve(metrics: Path, picture: Path, title: str, goal: float | None) -> None:
    """Plots the returns of training episodes and of evaluations over environment steps; nothing when there are none."""
    curves = read_curves(metrics, RETURNS)
    if not any(curve.steps for curve in curves.values()):
        return
    points = {name: curve.thinned(_MOST_POINTS) for name, curve in curves.items()}
    figure = returns_figure({name: (curve.steps, curve.values) for name, curve in points.items()}, title, goal)
    figure.savefig(picture)
