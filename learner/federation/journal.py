"""The events of a federation on disk: one JSON line each, with a checksum. Only a torn last line is dropped.

A line is written whole or taken back, so that a full disk leaves no fragment for a later line to join. A long journal
is replaced by one line with the state of the rounds. A witness beside it records its length: a missing or truncated
journal is an error, since a federation that started over would forget how much privacy it has spent.
"""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parlmesh.durable_files import PRIVATE, replace_file, sync_folder, write_all
from parlmesh.errors import FailedPrecondition
from parlmesh.high_water_mark import Witness

from .rules import events
from .rules.events import Event
from .rules.masked_round import NodeKeys, NodeShares
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
# Synced to disk before the next step, which relies on them. Damage to a single update shows in its digest.
_SYNCED = (events.Begin, events.Aggregated, events.Stop)
_COMPACTED_BYTES = 4 << 20
# Shared by all journals: their folders tell them apart.
_IDENTITY = 1
JOURNAL = "journal.jsonl"
LOST = "JOURNAL_LOST"


def encode(event: Event, now: float) -> bytes:
    """An event as one line. Called before the rounds change, since it may fail."""
    body = json.dumps([type(event).__name__, round(now, 6), _values(event)], separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


class Journal:
    """An append survives the end of the process, and, from the next synced event on, a power cut."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._compacted = 0
        self._witness = Witness(path)
        self._open()

    @property
    def long(self) -> bool:
        """Whether a compaction is worth it."""
        return self._size > max(_COMPACTED_BYTES, 2 * self._compacted)

    def append(self, event: Event, line: bytes) -> None:
        """Appends an encoded event; on OSError, nothing was appended."""
        synced = isinstance(event, _SYNCED)
        if synced:
            self._check()
        try:
            write_all(self._descriptor, line)
            if synced:
                os.fdatasync(self._descriptor)
        except BaseException:
            # This works on a full disk too. Whatever a broken disk leaves behind is cut off by `read_journal`.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        if synced:
            self._witness.note(self._size)

    def compact(self, line: bytes) -> None:
        """Replaces all lines with this one; after an OSError the journal is unchanged."""
        # Until the file is replaced, it may have either length.
        self._witness.begin(_IDENTITY, 1)
        try:
            replace_file(self._path, line, mode=PRIVATE)
        except OSError:
            self._witness.begin(_IDENTITY, self._size)
            raise
        self.close()
        self._open()
        self._compacted = len(line)

    def reopen(self) -> None:
        """Reopens the file after trouble with the disk; only whole lines are kept."""
        self.close()
        for _ in read_journal(self._path):
            pass
        self._open()

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self._witness.close()

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._size = os.fstat(self._descriptor).st_size
            os.fdatasync(self._descriptor)
            sync_folder(self._path.parent)
            self._witness.begin(_IDENTITY, self._size)
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        """Raises OSError if the file was deleted, replaced or cut, since new lines would be lost."""
        held = os.fstat(self._descriptor)
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino) or held.st_size < self._size:
            raise OSError(errno.ESTALE, "the journal was deleted, replaced or cut while it was in use", str(self._path))


def read_journal(path: Path) -> Iterator[tuple[Event, float]]:
    """Events with their times, oldest first; FailedPrecondition when a line before the last is damaged or lines are
    missing.

    A torn last line is cut off; one that lacks only its newline gets it.
    """
    seen = Witness(path).read()
    least = 0 if seen is None else seen.last_id
    data = path.read_bytes() if path.exists() else b""
    if len(data) < least:
        raise _lost(path, len(data), least)
    lines = data.split(b"\n")
    for index, line in enumerate(lines):
        if not line:
            continue
        found = _read(line)
        if found is None:
            if index < len(lines) - 1 and any(lines[index + 1 :]):
                raise FailedPrecondition(f"line {index + 1} of {path} is damaged", reason="JOURNAL_DAMAGED")
            whole = sum(len(earlier) + 1 for earlier in lines[:index])
            if whole < least:
                raise _lost(path, whole, least)
            _cut(path, whole)
            return
        if index == len(lines) - 1:
            _end_line(path)
        yield found


def _values(event: Event) -> dict[str, Any]:
    """Like dataclasses.asdict, without its copies: a node waits while its update is recorded."""
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


def _lost(path: Path, size: int, least: int) -> FailedPrecondition:
    text = f"{path} has {size} bytes but had at least {least}: put a whole copy in its place"
    return FailedPrecondition(text, reason=LOST)


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _end_line(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        write_all(file.fileno(), b"\n")
