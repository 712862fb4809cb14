"""Fits the world's parameters to recorded metrics: a pod's service rate, the network latency, and the fit's quality."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..placement.response_times import SATURATED, per_pod_response, shared_response

COLUMNS = ("time", "deployment", "replicas", "requests_per_second", "latency_ms")
_LARGEST_BYTES = 256 * 1024 * 1024
_LEAST_ROWS = 5
_TRIED = 400


@dataclass(frozen=True, slots=True)
class Record:
    """Rows of one deployment, each array [T]."""

    replicas: Array
    load: Array
    latency_ms: Array


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit for one deployment."""

    service_rate: float
    """Requests per second that one pod serves."""
    network_ms: float
    request_rate: float
    """Mean requests per second over all pods."""
    rows: int
    left_out: int
    """Rows that were overloaded or had no measurement."""
    error_ms: float
    """Root mean squared error."""
    relative_error: float
    """Mean absolute error relative to the measurement."""
    explained: float
    """Share of the variance that the model explains (R²); 0 is no better than a constant."""


def fitted(record: Record, queue: str, name: str = "a deployment") -> Fit:
    """The service rate and network constant with the least squared error, by a search over the rate."""
    known = np.isfinite(record.load) & np.isfinite(record.latency_ms) & (record.replicas >= 1) & (record.load >= 0)
    known &= record.latency_ms > 0
    replicas, load, latency = (part[known] for part in (record.replicas, record.load, record.latency_ms))
    if len(latency) < _LEAST_ROWS:
        raise InvalidInput(
            f"a fit of {name} needs at least {_LEAST_ROWS} rows with replicas >= 1, load >= 0 and latency > 0, "
            f"got {len(latency)} of {len(known)}"
        )
    share = load / replicas
    # A pod never answers faster than it serves, so the lowest latencies contain a whole service time.
    slowest, fastest = 1000.0 / np.quantile(latency, 0.05) / 4.0, 1e5
    rates = np.geomspace(max(slowest, 1e-3), fastest, _TRIED)
    best = min((_judged(rate, replicas, load, share, latency, queue) for rate in rates), key=lambda found: found[0])
    _, rate, network, predicted, used = best
    error = predicted - latency[used]
    variance = float(((latency[used] - latency[used].mean()) ** 2).sum())
    return Fit(
        service_rate=float(rate),
        network_ms=float(network),
        request_rate=float(load.mean()),
        rows=int(used.sum()),
        left_out=int(len(record.load) - used.sum()),
        error_ms=float(np.sqrt((error**2).mean())),
        relative_error=float((np.abs(error) / latency[used]).mean()),
        explained=1.0 - float((error**2).sum()) / variance if variance > 0 else 0.0,
    )


def _judged(
    rate: float, replicas: Array, load: Array, share: Array, latency: Array, queue: str
) -> tuple[float, float, float, Array, Array]:
    """The mean squared error of a rate with its best constant. A row that counts as overloaded contributes its full
    squared latency, so that leaving rows out does not make a rate look better."""
    used = share < SATURATED * rate
    if used.sum() < max(_LEAST_ROWS, 0.5 * len(share)):
        return np.inf, rate, 0.0, latency, used
    respond = shared_response if queue == "shared" else per_pod_response
    rates = np.full(int(used.sum()), rate)
    waited = 1000.0 * respond(load[used], rates, replicas[used])
    network = max(0.0, float((latency[used] - waited).mean()))
    predicted = waited + network
    squares = float(((predicted - latency[used]) ** 2).sum()) + float((latency[~used] ** 2).sum())
    return squares / len(share), rate, network, predicted, used


def read_records(file: Path) -> dict[str, Record]:
    """Rows of a CSV file with a header, by deployment, sorted by name."""
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise InvalidInput(f"{file} is larger than {_LARGEST_BYTES} bytes")
        # Spreadsheets start their files with a byte-order mark.
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            heads = reader.fieldnames or ()
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"{file} cannot be read: {said}") from error
    missing = [name for name in COLUMNS[1:] if name not in heads]
    if missing:
        raise InvalidInput(f"{file} needs the columns {', '.join(COLUMNS[1:])}; it has no {', '.join(missing)}")
    if not rows:
        raise InvalidInput(f"{file} has no rows below its header")
    by_name: dict[str, list[tuple[float, float, float]]] = {}
    for number, row in enumerate(rows, start=2):
        values = tuple(_number(row[name], f"{file} line {number}: {name}") for name in COLUMNS[2:])
        by_name.setdefault(str(row["deployment"]), []).append(values)  # type: ignore[arg-type]
    return {name: _record(values) for name, values in sorted(by_name.items())}


def _number(given: str | None, where: str) -> float:
    """The number, or NaN for an empty cell."""
    try:
        return float(given or "nan")
    except ValueError:
        raise InvalidInput(f"{where} must be a number, got {given!r}") from None


def joined_records(series: Sequence[Mapping[str, Mapping[float, float]]]) -> dict[str, Record]:
    """Joins Prometheus series of replicas, load and latency by deployment and time; keeps times that have all three."""
    replicas, load, latency = series
    found = {}
    for name in sorted(latency):
        times = sorted(latency[name].keys() & load.get(name, {}).keys() & replicas.get(name, {}).keys())
        found[name] = _record([(replicas[name][at], load[name][at], latency[name][at]) for at in times])
    return found


def _record(values: Sequence[tuple[float, float, float]]) -> Record:
    columns = np.array(values, np.float64).reshape(-1, 3)
    return Record(columns[:, 0], columns[:, 1], columns[:, 2])
