"""A run's curves, read from the metrics.jsonl that its recorder writes: they are there after a restart too."""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NOT_CURVES = ("time", "step")


@dataclass(slots=True)
class Curve:
    """Points of ascending steps."""

    steps: "array[int]" = field(default_factory=lambda: array("Q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def go_back_before(self, step: int) -> None:
        """Forgets what an earlier life of the run recorded past the checkpoint that the next one went on from."""
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self.values.pop()

    def thinned(self, most: int) -> "Curve":
        """At most this many points, evenly spaced, the first and the last among them."""
        count = len(self.steps)
        if count <= most:
            return self
        chosen = [round(index * (count - 1) / max(most - 1, 1)) for index in range(most)]
        steps, values = (self.steps[index] for index in chosen), (self.values[index] for index in chosen)
        return Curve(array("Q", steps), array("d", values))


def read_curves(path: Path, names: Sequence[str] = (), first_step: int = 0, last_step: int = 0) -> dict[str, Curve]:
    """Chosen curves, or all, in a range of steps; `last_step` 0 = to the end. What is not there is an empty curve."""
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
    """A line that a crash cut off is passed over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        yield from _parsed(lines)


def _parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "step" in row:
            yield row
