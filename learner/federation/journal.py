"""The events of a federation on disk: one JSON line each, with a checksum. Only a torn last line is dropped.

A line is there whole or it is taken back: a disk that is full for a moment leaves nothing that a later line could be
glued to. A long journal is put in place by one line that has the state of the rounds.
"""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parlmesh.errors import FailedPrecondition
from parlmesh.files import PRIVATE, replace_file, sync_folder, write_all

from .rules import events
from .rules.events import Event
from .rules.masking import NodeKeys, NodeShares
from .rules.records import Answer

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
        events.Prepared,
        events.NotUnmasked,
        events.Tick,
        events.Stop,
        events.Restored,
    )
}
# What the next step stands on is on disk before that step; single updates are told by their digests.
_SYNCED = (events.Begin, events.Aggregated, events.Stop)
_COMPACTED_BYTES = 4 << 20


def encode(event: Event, now: float) -> bytes:
    """One line. Made before the rounds change, since it may fail."""
    body = json.dumps([type(event).__name__, round(now, 6), _values(event)], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


class Journal:
    """Appends survive the end of the process at once, and a power cut from the next synced event on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._compacted = 0
        self._open()

    @property
    def long(self) -> bool:
        """Whether a compaction is worth it."""
        return self._size > max(_COMPACTED_BYTES, 2 * self._compacted)

    def append(self, event: Event, line: bytes) -> None:
        """Adds an event that was encoded; OSError when it could not be written, and then it is not there."""
        try:
            write_all(self._descriptor, line)
            if isinstance(event, _SYNCED):
                os.fdatasync(self._descriptor)
        except OSError:
            # Also possible on a full disk. What a broken one leaves behind is cut off when it is next opened.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)

    def compact(self, line: bytes) -> None:
        """The line takes the place of all others; OSError leaves the journal as it was."""
        replace_file(self._path, line, mode=PRIVATE)
        self.close()
        self._open()
        self._compacted = len(line)

    def reopen(self) -> None:
        """After trouble with the disk: only whole lines are kept."""
        self.close()
        for _ in read_journal(self._path):
            pass
        self._open()

    def close(self) -> None:
        """Lets go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        sync_folder(self._path.parent)


def read_journal(path: Path) -> Iterator[tuple[Event, float]]:
    """Events with their times, oldest first; FailedPrecondition when a line before the last is damaged.

    What is left of a torn last line is cut off; one that lacks its newline alone is given it.
    """
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
        if index == len(lines) - 1:
            _end_line(path)
        yield found


def _values(event: Event) -> dict[str, Any]:
    """As dataclasses.asdict, without its copies: an update is written down while its node waits."""
    values = {name: getattr(event, name) for name in event.__slots__}
    if isinstance(event, events.Prepared):
        values["answer"] = asdict(event.answer)
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
    if kind == "Prepared":
        answer = values["answer"]
        kept = NodeKeys(**answer) if "mask" in answer else NodeShares(**answer)
        return events.Prepared(values["node_id"], values["nonce"], kept)
    if kind == "Begin":
        values = {**values, "nodes": tuple(values["nodes"])}
    event: Event = _KINDS[kind](**values)
    return event


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _end_line(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        write_all(file.fileno(), b"\n")
