"""Records what clients and handlers saw during faults, and the files that hold these records.

Every process appends to its own file, one JSON line per record, so that a kill costs at most the last line. Times are
from CLOCK_MONOTONIC, which all processes of a machine share and which never jumps.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submission of tasks and its answer."""

    task_ids: tuple[str, ...]
    start: float
    end: float
    answer: str
    """accepted, refused, or unknown if no answer came."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """An outcome that reached a waiting caller; the same outcome may reach several."""

    task_id: str
    at: float
    state: str
    """succeeded, failed, cancelled, quarantined, or forgotten if retention had dropped the outcome."""
    token: str = ""
    """Token of the attempt that produced it."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Tasks that the scheduler reported as cancelled."""

    task_ids: tuple[str, ...]
    at: float
    answered: bool = True
    """False: it was asked to cancel, but no answer came."""


@dataclass(frozen=True, slots=True)
class Began:
    """A handler started; the token is unique to this attempt."""

    task_id: str
    attempt: int
    actor: str
    token: str
    at: float
    inline: bool = False
    """It runs on arrival: it never waits for a slot and cannot be moved."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A handler ended."""

    token: str
    at: float
    how: str
    """succeeded, failed or stopped."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault injected into a process or its link."""

    target: str
    kind: str
    start: float
    end: float
    lingers: float = 0.0
    """Seconds after its end during which it still has effects, until the target has settled its leases."""


@dataclass(frozen=True, slots=True)
class Version:
    """A policy version that an observer received."""

    observer: str
    run: str
    version: int
    at: float


@dataclass(frozen=True, slots=True)
class Scrape:
    """A learner's counters at one moment."""

    source: str
    at: float
    received: int
    trained: int
    queued: int
    dropped: int


Record: TypeAlias = Submitted | Delivered | Cancelled | Began | Ended | Fault | Version | Scrape
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Submitted, Delivered, Cancelled, Began, Ended, Fault, Version, Scrape)
}


class Journal:
    """Appends records to a file; several processes may share it."""

    def __init__(self, path: Path) -> None:
        # O_APPEND makes a line of this size complete or absent, even with other writers.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, record: Record) -> None:
        """Writes a record; it survives a kill of the process once this returns."""
        line = json.dumps({"is": type(record).__name__, **asdict(record)}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class History:
    """Everything that was recorded."""

    records: list[Record] = field(default_factory=list)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "History":
        """The records of all files, in no particular order."""
        return cls([record for path in sorted(paths) for record in _records(path)])

    def of(self, kind: type[Any]) -> list[Any]:
        """The records of one kind."""
        return [record for record in self.records if isinstance(record, kind)]


def now() -> float:
    """The clock of every record."""
    return time.monotonic()


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            # Truncated by a kill or a full disk, so its content is unknown.
            continue
        kind = _KINDS[found.pop("is")]
        if "task_ids" in found:
            found["task_ids"] = tuple(found["task_ids"])
        yield kind(**found)
