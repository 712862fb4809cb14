"""The events of a federation on disk: one JSON line each, with a checksum. Only a torn last line is dropped."""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlmesh.errors import FailedPrecondition

from . import events
from .events import Event
from .records import Answer

_KINDS = {
    kind.__name__: kind
    for kind in (
        events.Begin,
        events.Delivered,
        events.Refused,
        events.TaskFailed,
        events.Damaged,
        events.Aggregated,
        events.Evaluated,
        events.Tick,
        events.Stop,
    )
}
# What the next step stands on is on disk before that step; single updates are told by their digests.
_SYNCED = (events.Begin, events.Aggregated, events.Stop)


class Journal:
    """Appends survive the end of the process at once, and a power cut from the next synced event on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def append(self, event: Event, now: float) -> None:
        """Adds one event."""
        body = json.dumps([type(event).__name__, round(now, 6), _values(event)], separators=(",", ":")).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(body), body))
        if isinstance(event, _SYNCED):
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


def read_journal(path: Path) -> Iterator[tuple[Event, float]]:
    """Events with their times, oldest first; FailedPrecondition when a line before the last is damaged."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    for index, line in enumerate(lines):
        if not line:
            continue
        found = _read(line)
        if found is None:
            if index < len(lines) - 1 and any(lines[index + 1 :]):
                raise FailedPrecondition(f"line {index + 1} of {path} is damaged", reason="JOURNAL_DAMAGED")
            _cut(path, sum(len(earlier) + 1 for earlier in lines[:index]))
            return
        yield found


def _values(event: Event) -> dict[str, Any]:
    """As dataclasses.asdict, without its copies: an update is written down while its node waits."""
    values = {name: getattr(event, name) for name in event.__slots__}
    if isinstance(event, events.Delivered):
        answer = event.answer
        values["answer"] = {name: getattr(answer, name) for name in answer.__slots__}
    return values


def _read(line: bytes) -> tuple[Event, float] | None:
    checksum, _, body = line.partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None
        kind, now, values = json.loads(body)
    except ValueError:
        return None
    return _event(kind, values), float(now)


def _event(kind: str, values: dict[str, Any]) -> Event:
    if kind == "Delivered":
        return events.Delivered(Answer(**values["answer"]))
    if kind == "Begin":
        values = {**values, "nodes": tuple(values["nodes"])}
    event: Event = _KINDS[kind](**values)
    return event


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
