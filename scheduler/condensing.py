"""Shortens a journal: what remains rebuilds the same state. Works on encoded records and decodes almost none."""

from collections.abc import Iterator
from itertools import islice

from .actions import Paused
from .records import DamagedJournal, Forgotten, RecordKind, decode, split

SUBMITTED, LEASED = int(RecordKind.SUBMITTED), int(RecordKind.LEASED)
RETURNED, FINISHED = int(RecordKind.RETURNED), int(RecordKind.FINISHED)


class _Trail:
    """What is left to say about one task."""

    __slots__ = ("finished", "leased", "returned", "submitted")

    def __init__(self, submitted: bytes) -> None:
        self.submitted = submitted
        self.returned = b""
        self.leased = b""
        self.finished = b""


class Condenser:
    """Reads batches in order; then gives out batches that say the same."""

    def __init__(self) -> None:
        self._unfinished: dict[int, _Trail] = {}
        # In the order in which they finished, because that is the order in which they are forgotten.
        self._finished: dict[int, _Trail] = {}
        self._paused: dict[str, bytes] = {}

    @property
    def tasks(self) -> int:
        return len(self._unfinished) + len(self._finished)

    def read(self, batch: bytes) -> None:
        try:
            self._read(batch)
        except KeyError as error:
            raise DamagedJournal(f"the journal speaks of task number {error} before it was submitted") from None

    def _read(self, batch: bytes) -> None:
        for kind, number, raw in split(batch):
            if kind == SUBMITTED:
                self._unfinished[number] = _Trail(raw)
            elif kind == LEASED:
                self._unfinished[number].leased = raw
            elif kind == RETURNED:
                trail = self._unfinished[number]
                trail.returned, trail.leased = raw, b""
            elif kind == FINISHED:
                trail = self._finished[number] = self._unfinished.pop(number)
                trail.finished = raw
            else:
                self._read_rare(raw)

    def write(self, batch_bytes: int) -> Iterator[bytes]:
        """Batches of about this size."""
        parts: list[bytes] = []
        size = 0
        for part in self._parts():
            parts.append(part)
            size += len(part)
            if size >= batch_bytes:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def _parts(self) -> Iterator[bytes]:
        for trail in self._unfinished.values():
            yield trail.submitted + trail.returned + trail.leased
        for trail in self._finished.values():
            yield trail.submitted + trail.finished
        yield from self._paused.values()

    def _read_rare(self, raw: bytes) -> None:
        for record in decode(raw):
            if isinstance(record, Forgotten):
                for number in list(islice(self._finished, record.tasks)):
                    del self._finished[number]
            elif isinstance(record, Paused):
                self._paused.pop(record.actor_id, None)
                if record.paused:
                    self._paused[record.actor_id] = raw
