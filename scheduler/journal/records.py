"""Journal records as bytes, and back. The layout is on disk: add kinds and versions, never change one.

A record is a kind, the length of what follows, and the number of its task (0 where there is none), so that records
can be told apart and thrown away without being decoded. Little-endian throughout.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from parlmesh import limits
from parlmesh.errors import FleetError

from ..core.actions import Dismissed, Introduced, Kinds, Paused, Persist, Returned, Standing
from ..core.task import ANYWHERE, Failure, Placement, Task, TaskState

VERSION = 1


class RecordKind(IntEnum):
    """Numbers on disk."""

    SUBMITTED = 1
    LEASED = 2
    RETURNED = 3
    FINISHED = 4
    FORGOTTEN = 5
    PAUSED = 6
    # RETURNED with a time; written instead of it since.
    RETURNED_AT = 7
    INTRODUCED = 8
    DISMISSED = 9
    KINDS = 10
    GAP = 11
    STANDING = 12


class Submitted(NamedTuple):
    """A task was accepted."""

    task: Task
    time: float


class Leased(NamedTuple):
    """A lease was granted."""

    number: int
    lease_id: int
    attempts: int
    actor_id: str


class Forgotten(NamedTuple):
    """The tasks that finished first, this many, are no longer kept."""

    tasks: int


class Ended(NamedTuple):
    """A task reached a final state."""

    number: int
    time: float
    state: TaskState
    attempts: int
    queued: float
    ran: float
    actor_id: str
    result: bytes
    failure: Failure | None


class Gap(NamedTuple):
    """Something before the task of this number could not be read: a task that is not there may never have ended."""

    number: int


StoredRecord = (
    Submitted | Leased | Returned | Ended | Forgotten | Paused | Introduced | Dismissed | Kinds | Gap | Standing
)


class DamagedJournal(FleetError):
    """The journal is not what was written; starting from it would lose or invent tasks."""

    default_reason = "DAMAGED_JOURNAL"


# What reading a record that is not what was written can raise.
UNREADABLE = (DamagedJournal, struct.error, ValueError, LookupError, AssertionError)

_SEAL = struct.Struct("<BI")
_HEAD = struct.Struct("<BIQ")
# time, queue timeout, run timeout (negative = none), max attempts, priority, then lengths and counts:
# id, kind, submitter, node, labels, dependencies; the payload is the rest.
_SUBMITTED = struct.Struct("<dddIBHHHHHI")
# Both in one go: a restart reads very many of them.
_SUBMITTED_WHOLE = struct.Struct(_HEAD.format + _SUBMITTED.format[1:])
_LEASED = struct.Struct("<QI")
_RETURNED = struct.Struct("<III")
_RETURNED_AT = struct.Struct("<IIId")
# incarnation, slots, length of the node's id; the actor's is the rest
_INTRODUCED = struct.Struct("<QIH")
# end of the quarantine, strikes, length of the node's id; then the strikes' times, the node and the reason
_STANDING = struct.Struct("<dHH")
# time, queued, ran, attempts, state, length of the actor's id, length of the result, failure: 0 none, 1 final,
# 2 retryable; length of the reason; the message is the rest.
_FINISHED = struct.Struct("<dddIBHIBH")
_FORGOTTEN = struct.Struct("<I")
_PAUSED = struct.Struct("<?")
_LENGTH = struct.Struct("<H")
# The length in a record's head.
_LENGTH_OF = struct.Struct("<xI")
# SUBMITTED and FINISHED begin with it.
_TIME = struct.Struct("<d")
_NONE = -1.0
_MOST_PRIORITY = int(limits.PRIORITY.most)
_STATES = {int(state): state for state in TaskState}
# Plain numbers: looking up a member of an enum class is slow.
_KIND_SUBMITTED, _KIND_LEASED, _KIND_FINISHED = 1, 2, 4
_KIND_FORGOTTEN, _KIND_PAUSED, _KIND_RETURNED_AT = 5, 6, 7


def encode(persist: Persist) -> tuple[bytes, int]:
    """One event as a batch, and the number of its records."""
    parts: list[bytes] = []
    time, head = persist.time, _HEAD.pack
    for task in persist.submitted:
        body = _submitted(task, time)
        parts += (head(_KIND_SUBMITTED, len(body), task.number), body)
    for number, *counts in persist.returned:
        parts += (head(_KIND_RETURNED_AT, _RETURNED_AT.size, number), _RETURNED_AT.pack(*counts))
    for task in persist.finished:
        body = _finished(task, time)
        parts += (head(_KIND_FINISHED, len(body), task.number), body)
    for task in persist.leased:
        body = _LEASED.pack(task.lease_id, task.attempts) + task.actor_id.encode()
        parts += (head(_KIND_LEASED, len(body), task.number), body)
    if persist.forgotten:
        parts += (head(_KIND_FORGOTTEN, _FORGOTTEN.size, 0), _FORGOTTEN.pack(persist.forgotten))
    for actor_id, paused in persist.paused:
        body = _PAUSED.pack(paused) + actor_id.encode()
        parts += (head(_KIND_PAUSED, len(body), 0), body)
    if persist.actors or persist.kinds:
        parts += _rare(persist)
    return b"".join(parts), len(parts) // 2


def encode_gap(number: int) -> bytes:
    return _HEAD.pack(RecordKind.GAP, 0, number)


def decode(batch: bytes) -> Iterator[StoredRecord]:
    for kind, number, raw in split(batch):
        yield _decode_body(kind, number, raw[_HEAD.size :])


def split(batch: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(kind, task number, the whole record) of each, without decoding it."""
    position, end = 0, len(batch)
    unpack, size = _HEAD.unpack_from, _HEAD.size
    while position < end:
        try:
            kind, length, number = unpack(batch, position)
        except struct.error:
            raise DamagedJournal(f"a record head is cut off at byte {position} of {end}") from None
        stop = position + size + length
        if stop > end:
            raise DamagedJournal(f"a record at byte {position} needs {stop - end} bytes more than there are")
        yield kind, number, batch[position:stop]
        position = stop


def read_submitted(raw: bytes, names: dict[bytes, str]) -> tuple[Task, float]:
    """Task and time of a SUBMITTED record. Kinds and submitters are few: the tasks share the strings in `names`."""
    fields = _SUBMITTED_WHOLE.unpack_from(raw)
    _, _, number, time, queue_timeout, run_timeout, max_attempts, priority, *sizes = fields
    if not (1 <= priority <= _MOST_PRIORITY and time - time == 0.0):
        raise DamagedJournal(f"task number {number} has priority {priority} and was submitted at {time}")
    id_size, kind_size, submitter_size, node_size, labels, dependencies = sizes
    if node_size or labels or dependencies:
        submitted = _decode_submitted(number, raw[_HEAD.size :])
        return submitted.task, submitted.time
    kind_at = _SUBMITTED_WHOLE.size + id_size
    submitter_at = kind_at + kind_size
    body_at = submitter_at + submitter_size
    kind_name, submitter_name = raw[kind_at:submitter_at], raw[submitter_at:body_at]
    kind, submitter = names.get(kind_name), names.get(submitter_name)
    if kind is None or submitter is None:
        kind = names[kind_name] = kind_name.decode()
        submitter = names[submitter_name] = submitter_name.decode()
    task = Task(
        raw[_SUBMITTED_WHOLE.size : kind_at].decode(),
        kind,
        raw[body_at:],
        priority,
        (),
        ANYWHERE,
        None if queue_timeout < 0 else queue_timeout,
        None if run_timeout < 0 else run_timeout,
        max_attempts,
        submitter,
    )
    task.number = number
    return task, time


def count(batch: bytes) -> int:
    """How many records it has; what is cut off is one."""
    position, end, found = 0, len(batch), 0
    unpack, size = _LENGTH_OF.unpack_from, _HEAD.size
    while position + size <= end:
        position += size + unpack(batch, position)[0]
        found += 1
    return found + (position < end)


def peek_task_id(submitted: bytes) -> str:
    """The id in a SUBMITTED record, without reading the rest."""
    size = _SUBMITTED.unpack_from(submitted, _HEAD.size)[5]
    start = _HEAD.size + _SUBMITTED.size
    return submitted[start : start + size].decode()


def peek_time(record: bytes) -> float:
    """When a SUBMITTED, FINISHED or RETURNED_AT record was written, by the journal's clock; 0 for any other."""
    kind = record[0]
    if kind == _KIND_RETURNED_AT:
        return float(_RETURNED_AT.unpack_from(record, _HEAD.size)[3])
    return float(_TIME.unpack_from(record, _HEAD.size)[0]) if kind in (_KIND_SUBMITTED, _KIND_FINISHED) else 0.0


def peek_finished(finished: bytes) -> tuple[TaskState, float]:
    """State and time of a FINISHED record."""
    fields = _FINISHED.unpack_from(finished, _HEAD.size)
    return _STATES[fields[4]], fields[0]


def seal(batch: bytes) -> bytes:
    """With a version and a checksum in front."""
    return _SEAL.pack(VERSION, zlib.crc32(batch)) + batch


def unseal(sealed: bytes, where: str) -> bytes:
    """What was sealed, or DamagedJournal."""
    if len(sealed) < _SEAL.size:
        raise DamagedJournal(f"{where} has {len(sealed)} bytes, too few for a checksum", where=where)
    version, checksum = _SEAL.unpack_from(sealed)
    if version != VERSION:
        raise DamagedJournal(f"{where} has version {version}; this scheduler reads version {VERSION}", where=where)
    batch = sealed[_SEAL.size :]
    if zlib.crc32(batch) != checksum:
        raise DamagedJournal(f"{where} does not match its checksum", where=where)
    return batch


def _rare(persist: Persist) -> list[bytes]:
    """Heads and bodies of what is seldom written."""
    parts: list[bytes] = []
    for note in persist.actors:
        if isinstance(note, Introduced):
            node = note.node_id.encode()
            body = _INTRODUCED.pack(note.incarnation, note.slots, len(node)) + node + note.actor_id.encode()
            parts += (_HEAD.pack(RecordKind.INTRODUCED, len(body), 0), body)
        elif isinstance(note, Standing):
            body = _standing(note)
            parts += (_HEAD.pack(RecordKind.STANDING, len(body), 0), body)
        else:
            body = note.actor_id.encode()
            parts += (_HEAD.pack(RecordKind.DISMISSED, len(body), 0), body)
    for known, names in persist.kinds:
        body = b"".join((_PAUSED.pack(known), *(part for name in names for part in _prefixed(name))))
        parts += (_HEAD.pack(RecordKind.KINDS, len(body), 0), body)
    return parts


def _standing(note: Standing) -> bytes:
    node, times = note.node_id.encode(), struct.pack(f"<{len(note.strikes)}d", *note.strikes)
    return _STANDING.pack(note.until, len(note.strikes), len(node)) + times + node + note.reason.encode()


def _submitted(task: Task, time: float) -> bytes:
    task_id, kind, submitter = task.task_id.encode(), task.kind.encode(), task.submitter.encode()
    node_id, labels, _ = task.placement
    node, dependencies = node_id.encode(), task.dependencies
    head = _SUBMITTED.pack(
        time,
        _NONE if task.queue_timeout is None else task.queue_timeout,
        _NONE if task.run_timeout is None else task.run_timeout,
        task.max_attempts,
        task.priority,
        len(task_id),
        len(kind),
        len(submitter),
        len(node),
        len(labels),
        len(dependencies),
    )
    if not labels and not dependencies:
        return b"".join((head, task_id, kind, submitter, node, task.body))
    texts = [text for label in sorted(labels) for text in label] + list(dependencies)
    listed = [part for text in texts for part in _prefixed(text)]
    return b"".join((head, task_id, kind, submitter, node, *listed, task.body))


def _finished(task: Task, time: float) -> bytes:
    actor_id, failure = task.actor_id.encode(), task.failure
    reason = b"" if failure is None else failure.reason.encode()
    head = _FINISHED.pack(
        time,
        task.queued_seconds,
        task.ran,
        task.attempts,
        task.state,
        len(actor_id),
        len(task.result),
        0 if failure is None else 2 if failure.retryable else 1,
        len(reason),
    )
    if failure is None:
        return head + actor_id + task.result
    return b"".join((head, actor_id, task.result, reason, failure.message.encode()))


def _decode_body(kind: int, number: int, body: bytes) -> StoredRecord:
    try:
        if kind == RecordKind.SUBMITTED:
            return _decode_submitted(number, body)
        if kind == RecordKind.LEASED:
            lease_id, attempts = _LEASED.unpack_from(body)
            return Leased(number, lease_id, attempts, body[_LEASED.size :].decode())
        if kind == RecordKind.RETURNED:
            return Returned(number, *_RETURNED.unpack(body))
        if kind == RecordKind.RETURNED_AT:
            return Returned(number, *_RETURNED_AT.unpack(body))
        if kind == RecordKind.FINISHED:
            return _decode_finished(number, body)
        if kind == RecordKind.FORGOTTEN:
            return Forgotten(*_FORGOTTEN.unpack(body))
        if kind == RecordKind.PAUSED:
            return Paused(body[_PAUSED.size :].decode(), bool(body[0]))
        if kind == RecordKind.INTRODUCED:
            return _decode_introduced(body)
        if kind == RecordKind.DISMISSED:
            return Dismissed(body.decode())
        if kind == RecordKind.KINDS:
            return Kinds(bool(body[0]), tuple(_decode_texts(body, _PAUSED.size, None)[0]))
        if kind == RecordKind.GAP:
            return Gap(number)
        if kind == RecordKind.STANDING:
            return _decode_standing(body)
    except (struct.error, ValueError, LookupError) as error:
        raise DamagedJournal(f"a record of kind {kind} for task number {number} cannot be read: {error}") from None
    raise DamagedJournal(f"record kind {kind} is unknown; it may come from a newer scheduler")


def _decode_submitted(number: int, body: bytes) -> Submitted:
    time, queue_timeout, run_timeout, max_attempts, priority, *sizes = _SUBMITTED.unpack_from(body)
    position = _SUBMITTED.size
    texts = []
    for size in sizes[:4]:
        texts.append(body[position : position + size].decode())
        position += size
    task_id, kind, submitter, node_id = texts
    labels, dependencies = sizes[4:]
    listed, position = _decode_texts(body, position, 2 * labels + dependencies)
    pairs = zip(listed[: 2 * labels : 2], listed[1 : 2 * labels : 2], strict=True)
    task = Task(
        task_id,
        kind,
        body=body[position:],
        priority=priority,
        dependencies=tuple(listed[2 * labels :]),
        placement=Placement(node_id, frozenset(pairs)) if node_id or labels else ANYWHERE,
        queue_timeout=None if queue_timeout < 0 else queue_timeout,
        run_timeout=None if run_timeout < 0 else run_timeout,
        max_attempts=max_attempts,
        submitter=submitter,
    )
    task.number = number
    return Submitted(task, time)


def _decode_texts(body: bytes, position: int, count: int | None) -> tuple[list[str], int]:
    """So many texts, or all there are; and where they end."""
    texts: list[str] = []
    while position < len(body) if count is None else len(texts) < count:
        (size,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        texts.append(body[position : position + size].decode())
        position += size
    return texts, position


def _decode_introduced(body: bytes) -> Introduced:
    incarnation, slots, size = _INTRODUCED.unpack_from(body)
    actor_at = _INTRODUCED.size + size
    return Introduced(body[actor_at:].decode(), body[_INTRODUCED.size : actor_at].decode(), incarnation, slots)


def _decode_standing(body: bytes) -> Standing:
    until, strikes, size = _STANDING.unpack_from(body)
    node_at = _STANDING.size + 8 * strikes
    times = struct.unpack_from(f"<{strikes}d", body, _STANDING.size)
    return Standing(body[node_at : node_at + size].decode(), times, until, body[node_at + size :].decode())


def _decode_finished(number: int, body: bytes) -> Ended:
    time, queued, ran, attempts, state, actor_size, result_size, failed, reason_size = _FINISHED.unpack_from(body)
    result_at = _FINISHED.size + actor_size
    reason_at = result_at + result_size
    message_at = reason_at + reason_size
    failure = Failure(body[reason_at:message_at].decode(), body[message_at:].decode(), failed == 2) if failed else None
    return Ended(
        number,
        time,
        TaskState(state),
        attempts,
        queued,
        ran,
        body[_FINISHED.size : result_at].decode(),
        body[result_at:reason_at],
        failure,
    )


def _prefixed(text: str) -> tuple[bytes, bytes]:
    data = text.encode()
    return _LENGTH.pack(len(data)), data
