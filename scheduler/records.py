"""Journal records as bytes, and back. The layout is on disk: add kinds and versions, never change one.

A record is a kind, the length of what follows, and the number of its task (0 where there is none), so that records
can be told apart and thrown away without being decoded. Little-endian throughout.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from parlmesh.errors import FleetError

from .actions import Paused, Persist, Returned
from .task import ANYWHERE, Failure, Placement, Task, TaskState

VERSION = 1


class RecordKind(IntEnum):
    """Numbers on disk."""

    SUBMITTED = 1
    LEASED = 2
    RETURNED = 3
    FINISHED = 4
    FORGOTTEN = 5
    PAUSED = 6


class Submitted(NamedTuple):
    """A task was accepted."""

    task: Task
    wall_time: float


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
    wall_time: float
    state: TaskState
    attempts: int
    queued: float
    ran: float
    actor_id: str
    result: bytes
    failure: Failure | None


StoredRecord = Submitted | Leased | Returned | Ended | Forgotten | Paused


class DamagedJournal(FleetError):
    """The journal is not what was written; starting from it would lose or invent tasks."""

    default_reason = "DAMAGED_JOURNAL"


_SEAL = struct.Struct("<BI")
_HEAD = struct.Struct("<BIQ")
# wall time, queue timeout, run timeout (negative = none), max attempts, priority, then lengths and counts:
# id, kind, submitter, node, labels, dependencies; the payload is the rest.
_SUBMITTED = struct.Struct("<dddIBHHHHHI")
_LEASED = struct.Struct("<QI")
_RETURNED = struct.Struct("<III")
# wall time, queued, ran, attempts, state, length of the actor's id, length of the result, failure: 0 none, 1 final,
# 2 retryable; length of the reason; the message is the rest.
_FINISHED = struct.Struct("<dddIBHIBH")
_FORGOTTEN = struct.Struct("<I")
_PAUSED = struct.Struct("<?")
_LENGTH = struct.Struct("<H")
_NONE = -1.0
_STATES = {int(state): state for state in TaskState}
# Plain numbers: looking up a member of an enum class is slow.
_KIND_SUBMITTED, _KIND_LEASED, _KIND_RETURNED, _KIND_FINISHED, _KIND_FORGOTTEN, _KIND_PAUSED = map(int, RecordKind)


def encode(persist: Persist) -> tuple[bytes, int]:
    """One event as a batch, and the number of its records."""
    parts: list[bytes] = []
    wall_time, head = persist.wall_time, _HEAD.pack
    for task in persist.submitted:
        body = _submitted(task, wall_time)
        parts += (head(_KIND_SUBMITTED, len(body), task.number), body)
    for number, attempts, failures, losses in persist.returned:
        parts += (head(_KIND_RETURNED, _RETURNED.size, number), _RETURNED.pack(attempts, failures, losses))
    for task in persist.finished:
        body = _finished(task, wall_time)
        parts += (head(_KIND_FINISHED, len(body), task.number), body)
    for task in persist.leased:
        body = _LEASED.pack(task.lease_id, task.attempts) + task.actor_id.encode()
        parts += (head(_KIND_LEASED, len(body), task.number), body)
    if persist.forgotten:
        parts += (head(_KIND_FORGOTTEN, _FORGOTTEN.size, 0), _FORGOTTEN.pack(persist.forgotten))
    for actor_id, paused in persist.paused:
        body = _PAUSED.pack(paused) + actor_id.encode()
        parts += (head(_KIND_PAUSED, len(body), 0), body)
    return b"".join(parts), len(parts) // 2


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


def peek_task_id(submitted: bytes) -> str:
    """The id in a SUBMITTED record, without reading the rest."""
    size = _SUBMITTED.unpack_from(submitted, _HEAD.size)[5]
    start = _HEAD.size + _SUBMITTED.size
    return submitted[start : start + size].decode()


def peek_finished(finished: bytes) -> tuple[TaskState, float]:
    """State and wall time of a FINISHED record."""
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


def _submitted(task: Task, wall_time: float) -> bytes:
    task_id, kind, submitter = task.task_id.encode(), task.kind.encode(), task.submitter.encode()
    node_id, labels = task.placement
    node, dependencies = node_id.encode(), task.dependencies
    head = _SUBMITTED.pack(
        wall_time,
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


def _finished(task: Task, wall_time: float) -> bytes:
    actor_id, failure = task.actor_id.encode(), task.failure
    reason = b"" if failure is None else failure.reason.encode()
    head = _FINISHED.pack(
        wall_time,
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
        if kind == RecordKind.FINISHED:
            return _decode_finished(number, body)
        if kind == RecordKind.FORGOTTEN:
            return Forgotten(*_FORGOTTEN.unpack(body))
        if kind == RecordKind.PAUSED:
            return Paused(body[_PAUSED.size :].decode(), bool(body[0]))
    except (struct.error, ValueError, IndexError) as error:
        raise DamagedJournal(f"a record of kind {kind} for task number {number} cannot be read: {error}") from None
    raise DamagedJournal(f"record kind {kind} is unknown; it may come from a newer scheduler")


def _decode_submitted(number: int, body: bytes) -> Submitted:
    wall_time, queue_timeout, run_timeout, max_attempts, priority, *sizes = _SUBMITTED.unpack_from(body)
    position = _SUBMITTED.size
    texts = []
    for size in sizes[:4]:
        texts.append(body[position : position + size].decode())
        position += size
    task_id, kind, submitter, node_id = texts
    labels, dependencies = sizes[4:]
    listed = []
    for _ in range(2 * labels + dependencies):
        (size,) = _LENGTH.unpack_from(body, position)
        position += _LENGTH.size
        listed.append(body[position : position + size].decode())
        position += size
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
    return Submitted(task, wall_time)


def _decode_finished(number: int, body: bytes) -> Ended:
    wall_time, queued, ran, attempts, state, actor_size, result_size, failed, reason_size = _FINISHED.unpack_from(body)
    result_at = _FINISHED.size + actor_size
    reason_at = result_at + result_size
    message_at = reason_at + reason_size
    failure = Failure(body[reason_at:message_at].decode(), body[message_at:].decode(), failed == 2) if failed else None
    return Ended(
        number,
        wall_time,
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
