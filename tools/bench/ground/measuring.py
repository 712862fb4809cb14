"""Runs measurements, each in its own process, in turns, so that ours and the peers' see the same machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlmesh.grpc_engine import choose_engine

from .machine import QUIET_CORES, OthersWatch, wait_until_quiet
from .places import ROOT
from .samples import Samples

_GRACE_SECONDS = 10.0
_REASON_CHARACTERS = 300

Result = Mapping[str, Any]


class MeasurementFailed(Exception):
    """Why a process gave no figure, in one sentence."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A Python command line whose last line of output is one JSON object."""

    name: str
    arguments: tuple[str, ...]
    runs: int
    limit_seconds: float
    peer: str = ""
    """The peer whose venv it needs; empty = ours."""
    seeded: bool = False
    """Run k gets `--seed k`."""


@dataclass(slots=True)
class Findings:
    """The results of all runs, by the measurement's name."""

    results: dict[str, list[Result]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a name has no results, or fewer than were asked for."""
    others: dict[str, float] = field(default_factory=dict)
    """Most cores that other processes used just before or during a run of this name."""

    def samples(self, name: str, key: str) -> Samples | None:
        """The values of one key over all runs; None when there are none."""
        values = tuple(float(result[key]) for result in self.results.get(name, ()) if result.get(key) is not None)
        return Samples(values) if values else None

    @property
    def noisy(self) -> dict[str, float]:
        """The names whose figures were taken while other processes were busy."""
        return {name: round(cores, 2) for name, cores in self.others.items() if cores > QUIET_CORES}


def run_in_turns(
    measurements: Sequence[Measurement],
    interpreters: Mapping[str, Path],
    findings: Findings,
    *,
    quiet_seconds: float,
    say: Callable[[str], None],
    settle: Callable[[float], float] = wait_until_quiet,
    clear: Callable[[], None] = lambda: None,
) -> None:
    """Every first run, then every second run, and so on. A measurement that fails once is not repeated.

    A disturbed run is repeated for up to `quiet_seconds`. `clear` ends the processes that a run left
    behind.
    """
    for turn, measurement in in_turns(measurements):
        name = measurement.name
        if name in findings.reasons:
            continue
        python = interpreters.get(measurement.peer, Path(sys.executable))
        try:
            attempt = _calmest(measurement, python, turn, quiet_seconds, settle, clear)
        except MeasurementFailed as failure:
            findings.reasons[name] = str(failure)
            say(f"{name}: {failure}")
            continue
        findings.others[name] = max(attempt.others, findings.others.get(name, 0.0))
        findings.results.setdefault(name, []).append(attempt.result)
        say(
            f"{name} {turn + 1}/{measurement.runs}: {_headline(attempt.result)}  "
            f"[{attempt.seconds:.1f} s; others used {attempt.others:.1f} cores; load {os.getloadavg()[0]:.1f}]"
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    result: Result
    seconds: float
    others: float


def _calmest(
    measurement: Measurement,
    python: Path,
    turn: int,
    quiet_seconds: float,
    settle: Callable[[float], float],
    clear: Callable[[], None],
) -> _Attempt:
    """One undisturbed run, or the least disturbed one within `quiet_seconds`."""
    began, attempts = time.monotonic(), list[_Attempt]()
    while True:
        before = settle(max(0.0, quiet_seconds - (time.monotonic() - began)))
        watch, started = OthersWatch(), time.monotonic()
        try:
            result = run_once(measurement, python, turn)
        finally:
            clear()
        now = time.monotonic()
        attempts.append(_Attempt(result, now - started, max(before, watch.cores())))
        if attempts[-1].others <= QUIET_CORES or now - began >= quiet_seconds:
            return min(attempts, key=lambda attempt: attempt.others)


def in_turns(measurements: Sequence[Measurement]) -> Iterator[tuple[int, Measurement]]:
    """(0, a) (0, b) (1, a) (1, b) ... until each has had its runs."""
    for turn in range(max((measurement.runs for measurement in measurements), default=0)):
        for measurement in measurements:
            if turn < measurement.runs:
                yield turn, measurement


def run_once(measurement: Measurement, python: Path, turn: int) -> Result:
    """One process in its own group, ended with all its children. Ours uses the engine that the binaries choose."""
    environment = dict(os.environ)
    if not measurement.peer:
        choose_engine(environment)
    process = subprocess.Popen(
        [str(python), *measurement.arguments, *(("--seed", str(turn)) if measurement.seeded else ())],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=measurement.limit_seconds)
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"no figure within {measurement.limit_seconds:.0f} s") from None
    finally:
        end_group(process)
    if process.returncode != 0:
        raise MeasurementFailed(last_words(errors) or f"exit code {process.returncode}")
    return last_object(output)


def last_object(output: str) -> Result:
    """The JSON object on the last line that holds one."""
    for line in reversed(output.splitlines()):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict):
            return found
    raise MeasurementFailed("the process printed no JSON object")


def last_words(errors: str) -> str:
    """The last line that is not empty."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return lines[-1][:_REASON_CHARACTERS] if lines else ""


def _headline(result: Result) -> str:
    """The first number, which is the one that matters."""
    for key, value in result.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{key} {value:,.0f}" if abs(value) >= 1000 else f"{key} {value:.4g}"
    return "done"


def end_group(process: subprocess.Popen[str]) -> None:
    """Asks it to end first, because a fleet that is asked leaves nothing behind; then kills the remaining processes."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(_GRACE_SECONDS)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait(_GRACE_SECONDS)
