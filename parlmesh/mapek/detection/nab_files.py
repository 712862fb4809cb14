"""Reads series of the Numenta Anomaly Benchmark from a folder and scores each detector on them."""

import csv
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.types import Array

from .ensemble import DETECTORS, QUIET, VOTERS, Quiet, Watch
from .nab_score import Series, leave_one_out

_DAY_SECONDS = 86_400.0
_GAUSSIAN_VALUES, _GAUSSIAN_LEAST = 288, 10


@dataclass(frozen=True, slots=True)
class NabFile:
    """Times in Unix seconds, values, and anomaly windows as (first row, last row)."""

    name: str
    times: Array
    values: Array
    windows: tuple[tuple[int, int], ...]


def read_files(folder: Path) -> list[NabFile]:
    """Every series listed in windows.json."""
    listed = folder / "windows.json"
    if not listed.exists():
        raise NotFound(f"there is no {listed}; it names the series and their windows")
    try:
        return [_file(folder, name, windows) for name, windows in sorted(json.loads(listed.read_bytes()).items())]
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, csv.Error) as error:
        raise InvalidInput(f"{folder} holds no series and windows of NAB: {error!r:.300}") from None


def _file(folder: Path, name: str, windows: Any) -> NabFile:
    with (folder / name).open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    times = np.array([_seconds(row[0]) for row in rows])
    spans = []
    for first, last in windows:
        inside = np.flatnonzero((times >= _seconds(first)) & (times <= _seconds(last)))
        spans.append((int(inside[0]), int(inside[-1])))
    return NabFile(name, times, np.array([float(row[1]) for row in rows]), tuple(spans))


def score_table(files: list[NabFile]) -> list[dict[str, Any]]:
    """NAB's standard score of each detector alone, of the ensemble and of a windowed Gaussian, all with the same quiet
    time. Each file's threshold comes from the others. With recall, false alarms per day and microseconds per point."""
    alone = {name: _watched((name,)) for name in sorted(DETECTORS)}
    rows = [_row(name, make, files) for name, make in alone.items()]
    rows.append(_row("ensemble", _watched(VOTERS), files))
    rows.append(_row("windowed Gaussian", _gaussian, files))
    return rows


def _watched(voters: tuple[str, ...]) -> Callable[[], Callable[[float, float], float]]:
    def make() -> Callable[[float, float], float]:
        watch = Watch.restored(None, voters=voters, probation=0, threshold=1e-9)

        def update(at: float, value: float) -> float:
            reading = watch.update(at, value)
            return reading.score if reading.alarm else 0.0

        return update

    return make


def _gaussian() -> Callable[[float, float], float]:
    """NAB's own baseline: the tail probability under a normal distribution fitted to the last values."""
    values: deque[float] = deque(maxlen=_GAUSSIAN_VALUES)
    quiet = Quiet(QUIET)

    def update(at: float, value: float) -> float:
        score = 0.0
        if len(values) > _GAUSSIAN_LEAST:
            away = abs(value - float(np.mean(values))) / (float(np.std(values)) + 1e-9)
            score = 1.0 - math.erfc(away / math.sqrt(2.0))
        values.append(value)
        return score if quiet.broken_by(score) else 0.0

    return update


def _row(name: str, make: Callable[[], Callable[[float, float], float]], files: list[NabFile]) -> dict[str, Any]:
    series, points, began = [], 0, time.perf_counter()
    for file in files:
        update = make()
        scores = [update(float(at), float(value)) for at, value in zip(file.times, file.values, strict=True)]
        points += len(scores)
        series.append(Series(file.name, np.array(scores), file.windows))
    spent = time.perf_counter() - began
    score, judged = leave_one_out(series)
    return {
        "detector": name,
        "score": score,
        "microseconds": spent / points * 1e6,
        **_alarms(files, series, {file: threshold for file, threshold, _ in judged}),
    }


def _alarms(files: list[NabFile], series: list[Series], thresholds: Mapping[str, float]) -> dict[str, float]:
    found = windows = false = 0
    days = 0.0
    for file, one in zip(files, series, strict=True):
        alarms = np.flatnonzero(one.scores >= thresholds[one.name])
        alarms = alarms[alarms >= one.probation]
        hits = [(alarms >= first) & (alarms <= last) for first, last in one.windows]
        found += sum(bool(hit.any()) for hit in hits)
        windows += len(hits)
        false += int((~np.logical_or.reduce(hits)).sum()) if len(alarms) else 0
        days += float(file.times[-1] - file.times[one.probation]) / _DAY_SECONDS
    return {"recall": found / windows, "false_alarms_per_day": false / days}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
