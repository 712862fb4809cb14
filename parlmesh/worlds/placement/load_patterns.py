"""How load changes over an episode: factors of a deployment's mean request rate, drawn from a generator."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

_LARGEST_TRACE_BYTES = 64 * 1024 * 1024
_FIRST_PART = 2 / 3
KINDS = ("steady", "daily", "bursty")

# Mean steps between bursts and per burst, the range of a burst's load factor, and the factor between bursts.
BURST_EVERY, BURST_STEPS, BURST_FACTORS, CALM = 40.0, 12.0, (1.4, 2.2), 0.8
_DAILY_SWING = (0.3, 0.7)


def factors(kind: str, steps: int, day_steps: int, rng: np.random.Generator, trace: Array | None = None) -> Array:
    """Load over `steps` steps [steps], relative to its long-term mean."""
    if kind == "steady":
        return np.ones(steps)
    if kind == "daily":
        swing, start = rng.uniform(*_DAILY_SWING), rng.uniform(0.0, 1.0)
        wave: Array = 1.0 + swing * np.sin(2.0 * np.pi * (start + np.arange(steps) / day_steps))
        return wave
    if kind == "bursty":
        return _bursts(steps, rng)
    assert trace is not None
    return _cut(trace, steps, rng)


def _bursts(steps: int, rng: np.random.Generator) -> Array:
    found = np.full(steps, CALM)
    at = 0
    while True:
        at += 1 + int(rng.exponential(BURST_EVERY))
        lasts, factor = 1 + int(rng.exponential(BURST_STEPS)), rng.uniform(*BURST_FACTORS)
        if at >= steps:
            return found
        found[at : at + lasts] = factor
        at += lasts


def _cut(trace: Array, steps: int, rng: np.random.Generator) -> Array:
    """A random piece of the trace; a trace that is too short is repeated."""
    start = int(rng.integers(max(1, len(trace) - steps + 1)))
    found: Array = np.take(trace, np.arange(start, start + steps), mode="wrap")
    return found


def read_trace(given: str | Path | Sequence[float], part: str) -> Array:
    """The values of a part of the trace, divided by the mean of the whole."""
    try:
        values: Array = _numbers(Path(given)) if isinstance(given, str | Path) else np.array(given, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"trace must be a file or a list of numbers: {error}", reason="TRACE") from None
    if (
        values.ndim != 1
        or len(values) < 3
        or not np.isfinite(values).all()
        or values.min() < 0.0
        or values.mean() <= 0.0
    ):
        raise InvalidInput("trace must have at least 3 finite numbers >= 0 that are not all 0", reason="TRACE")
    values = values / values.mean()
    middle = int(len(values) * _FIRST_PART)
    parts: dict[str, Array] = {"all": values, "first": values[:middle], "last": values[middle:]}
    return parts[part]


def _numbers(file: Path) -> Array:
    try:
        if file.stat().st_size > _LARGEST_TRACE_BYTES:
            raise InvalidInput(f"trace {file} is larger than {_LARGEST_TRACE_BYTES} bytes", reason="TRACE")
        # A byte-order mark, as spreadsheets write it, would turn the first number into a heading.
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = [row for row in csv.reader(opened) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"trace {file} cannot be read: {said}", reason="TRACE") from error
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(float(row[-1]))
        except ValueError:
            if number:
                said = f"trace {file} line {number + 1}: {row[-1]!r} is not a number"
                raise InvalidInput(said, reason="TRACE") from None
    return np.array(found)
