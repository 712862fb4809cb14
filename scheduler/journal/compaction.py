"""Shortens a journal: the remaining records rebuild the same state. Works on encoded records, decodes almost none."""

from collections.abc import Iterable, Iterator
from itertools import islice

from ..core.actions import Dismissed, Introduced, Kinds, NodeRecord, Paused, Persist
from ..core.actors.node_quarantine import MAX_NODES
from .record_reader import decode, split
from .records import DamagedJournal, Forgotten, Gap, RecordKind, encode, encode_gap
from .skipped_records import UnreadableRecords

SUBMITTED, LEASED = int(RecordKind.SUBMITTED), int(RecordKind.LEASED)
RETURNED, RETURNED_AT = int(RecordKind.RETURNED), int(RecordKind.RETURNED_AT)
FINISHED = int(RecordKind.FINISHED)


class Trail:
    """The records that still matter for one task; empty where there is none."""

    __slots__ = ("finished", "leased", "returned", "submitted")

    def __init__(self, submitted: bytes, returned: bytes = b"", leased: bytes = b"") -> None:
        self.submitted = submitted
        self.returned = returned
        self.leased = leased
        self.finished = b""


class Compactor:
    """Reads batches in order, and keeps the records that still matter, by task number."""

    def __init__(self, unreadable: UnreadableRecords | None = None) -> None:
        # A task that was only submitted is kept as its bare record, because there may be very many of them.
        self.unfinished: dict[int, bytes | Trail] = {}
        # In the order in which they finished, because that is the order in which they are forgotten.
        self.finished: dict[int, Trail] = {}
        self.paused: dict[str, bytes] = {}
        self.actors: dict[str, bytes] = {}
        self.kinds: dict[str, None] = {}
        # By node, in the order of their last records.
        self.node_records: dict[str, bytes] = {}
        self._gap = 0
        self.unreadable = unreadable or UnreadableRecords()

    @property
    def tasks(self) -> int:
        return len(self.unfinished) + len(self.finished)

    @property
    def gap(self) -> int:
        """Number of the last task that may lack a dependency because a record could not be read; 0 = none does."""
        return max((self._gap, *self.unfinished, *self.finished)) if self.unreadable.count else self._gap

    def read_all(self, batches: Iterable[bytes]) -> None:
        for batch in batches:
            self.read(batch)

    def read(self, batch: bytes) -> None:
        """Skips only the records that cannot be read or that name an unknown task."""
        records = split(batch)
        while True:
            try:
                self._read(records)
                return
            except KeyError as error:
                self.unreadable.add(f"a record of task number {error}, which was not submitted or has ended")
            except DamagedJournal as error:
                self.unreadable.add(error.message)

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

    def _read(self, records: Iterator[tuple[int, int, bytes]]) -> None:
        unfinished = self.unfinished
        for kind, number, raw in records:
            if kind == SUBMITTED:
                unfinished[number] = raw
            elif kind == LEASED:
                trail = unfinished[number]
                if isinstance(trail, bytes):
                    unfinished[number] = Trail(trail, leased=raw)
                else:
                    trail.leased = raw
            elif kind == FINISHED:
                trail = unfinished.pop(number)
                if isinstance(trail, bytes):
                    trail = Trail(trail)
                trail.finished = raw
                self.finished[number] = trail
            elif kind in (RETURNED_AT, RETURNED):
                trail = unfinished[number]
                unfinished[number] = Trail(trail if isinstance(trail, bytes) else trail.submitted, raw)
            elif number and kind != RecordKind.GAP:
                # Otherwise a damaged record of a task could pass for one that forgets every finished task.
                raise DamagedJournal(f"a record of task number {number} has kind {kind}, which is not a kind for tasks")
            else:
                self._read_rare(raw)

    def _read_rare(self, raw: bytes) -> None:
        for record in decode(raw):
            if isinstance(record, Forgotten):
                for number in list(islice(self.finished, record.tasks)):
                    del self.finished[number]
            elif isinstance(record, Paused):
                self.paused.pop(record.actor_id, None)
                if record.paused:
                    self.paused[record.actor_id] = raw
            elif isinstance(record, Introduced):
                self.actors[record.actor_id] = raw
            elif isinstance(record, Dismissed):
                self.actors.pop(record.actor_id, None)
            elif isinstance(record, Kinds):
                for name in record.names:
                    if record.known:
                        self.kinds[name] = None
                    else:
                        self.kinds.pop(name, None)
            elif isinstance(record, NodeRecord):
                self._read_node_record(record, raw)
            elif isinstance(record, Gap):
                self._gap = max(self._gap, record.number)

    def _read_node_record(self, record: NodeRecord, raw: bytes) -> None:
        self.node_records.pop(record.node_id, None)
        if record.strikes or record.until:
            self.node_records[record.node_id] = raw
            if len(self.node_records) > MAX_NODES:
                del self.node_records[next(iter(self.node_records))]

    def _parts(self) -> Iterator[bytes]:
        for trail in self.unfinished.values():
            yield trail if isinstance(trail, bytes) else trail.submitted + trail.returned + trail.leased
        for trail in self.finished.values():
            yield trail.submitted + trail.finished
        yield from self.actors.values()
        yield from self.paused.values()
        yield from self.node_records.values()
        gap = self.gap
        if gap and any(number <= gap for number in self.unfinished):
            yield encode_gap(gap)
        if self.kinds:
            yield encode(Persist(0.0, [], [], [], [], 0, [], kinds=[Kinds(True, tuple(self.kinds))]))[0]
