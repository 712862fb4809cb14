"""Journal records, their layout and their encoding. This is a disk format: add kinds and versions, never change one.

A record starts with its kind, the length of its body and the number of its task (0 = none), so that records can be told
apart and thrown away without being decoded. Everything is little-endian.
"""

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from parlmesh.errors import FleetError

from ..core.actions import Dismissed, Introduced, Kinds, NodeRecord, Paused, Persist, Returned
from ..core.task import Failure, Task, TaskState

VERSION = 1


class RecordKind(IntEnum):
    """The numbers are on disk."""

    SUBMITTED = 1
    LEASED = 2
    RETURNED = 3
    FINISHED = 4
    FORGOTTEN = 5
    PAUSED = 6
    # RETURNED with a time; now written instead of it.
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
    """This many tasks, counted from the first to finish, are no longer kept."""

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
    """Something before the task of this number could not be read, so a missing task may never have ended."""

    number: int


StoredRecord = (
    Submitted | Leased | Returned | Ended | Forgotten | Paused | Introduced | Dismissed | Kinds | Gap | NodeRecord
)


class DamagedJournal(FleetError):
    """The journal differs from what was written; starting from it would lose or invent tasks."""

    default_reason = "DAMAGED_JOURNAL"


# Errors that reading a damaged record can raise.
UNREADABLE = (DamagedJournal, struct.error, ValueError, LookupError, AssertionError)

_SEAL = struct.Struct("<BI")
HEAD = struct.Struct("<BIQ")
# time, queue timeout, run timeout (negative = none), max attempts, priority, then lengths and counts:
# id, kind, submitter, node, labels, dependencies; the payload is the rest.
SUBMITTED_BODY = struct.Struct("<dddIBHHHHHI")
# Both together, because a restart reads very many of them.
SUBMITTED_WHOLE = struct.Struct(HEAD.format + SUBMITTED_BODY.format[1:])
LEASED_BODY = struct.Struct("<QI")
RETURNED_BODY = struct.Struct("<III")
RETURNED_AT_BODY = struct.Struct("<IIId")
# incarnation, slots, length of the node's id; the actor's is the rest
INTRODUCED_BODY = struct.Struct("<QIH")
# end of the quarantine, strikes, length of the node's id; then the strikes' times, the node and the reason
STANDING_BODY = struct.Struct("<dHH")
# time, queued, ran, attempts, state, length of the actor's id, length of the result, failure: 0 none, 1 final,
# 2 retryable; length of the reason; the message is the rest.
FINISHED_BODY = struct.Struct("<dddIBHIBH")
FORGOTTEN_BODY = struct.Struct("<I")
PAUSED_BODY = struct.Struct("<?")
TEXT_LENGTH = struct.Struct("<H")
# The length in a record's head.
_LENGTH_OF = struct.Struct("<xI")
_NONE = -1.0
# Plain numbers: looking up a member of an enum class is slow.
KIND_SUBMITTED, _KIND_LEASED, KIND_FINISHED = 1, 2, 4
_KIND_FORGOTTEN, _KIND_PAUSED, KIND_RETURNED_AT = 5, 6, 7


def encode(persist: Persist) -> tuple[bytes, int]:
    """One event as a batch, and the number of its records."""
    parts: list[bytes] = []
    time, head = persist.time, HEAD.pack
    for task in persist.submitted:
        body = _submitted(task, time)
        parts += (head(KIND_SUBMITTED, len(body), task.number), body)
    for number, *counts in persist.returned:
        parts += (head(KIND_RETURNED_AT, RETURNED_AT_BODY.size, number), RETURNED_AT_BODY.pack(*counts))
    for task in persist.finished:
        body = _finished(task, time)
        parts += (head(KIND_FINISHED, len(body), task.number), body)
    for task in persist.leased:
        body = LEASED_BODY.pack(task.lease_id, task.attempts) + task.actor_id.encode()
        parts += (head(_KIND_LEASED, len(body), task.number), body)
    if persist.forgotten:
        parts += (head(_KIND_FORGOTTEN, FORGOTTEN_BODY.size, 0), FORGOTTEN_BODY.pack(persist.forgotten))
    for actor_id, paused in persist.paused:
        body = PAUSED_BODY.pack(paused) + actor_id.encode()
        parts += (head(_KIND_PAUSED, len(body), 0), body)
    if persist.actors or persist.kinds:
        parts += _rare(persist)
    return b"".join(parts), len(parts) // 2


def encode_gap(number: int) -> bytes:
    return HEAD.pack(RecordKind.GAP, 0, number)


def count(batch: bytes) -> int:
    """The number of records in a batch; a truncated one counts."""
    position, end, found = 0, len(batch), 0
    unpack, size = _LENGTH_OF.unpack_from, HEAD.size
    while position + size <= end:
        position += size + unpack(batch, position)[0]
        found += 1
    return found + (position < end)


def seal(batch: bytes) -> bytes:
    """The batch with a version and a checksum in front."""
    return _SEAL.pack(VERSION, zlib.crc32(batch)) + batch


def unseal(sealed: bytes, where: str) -> bytes:
    """The batch that was sealed; raises DamagedJournal if it is damaged."""
    if not isinstance(sealed, bytes):
        # SQLite returns whatever type a damaged row names.
        raise DamagedJournal(f"{where} holds {type(sealed).__name__} in place of bytes", where=where)
    if len(sealed) < _SEAL.size:
        raise DamagedJournal(f"{where} has {len(sealed)} bytes, too few for a checksum", where=where)
    version, checksum = _SEAL.unpack_from(sealed)
    if version != VERSION:
        raise DamagedJournal(f"{where} has version {version}; this scheduler reads version {VERSION}", where=where)
    batch = sealed[_SEAL.size :]
    if zlib.crc32(batch) != checksum:
        raise DamagedJournal(f"{where} does not match its checksum", where=where)
    return batch


def unsealed_beginning(sealed: bytes, where: str) -> bytes:
    """The readable part of a truncated batch; no checksum covers it."""
    if len(sealed) < _SEAL.size or _SEAL.unpack_from(sealed)[0] != VERSION:
        raise DamagedJournal(f"{where} has nothing that can be read", where=where)
    return sealed[_SEAL.size :]


def _rare(persist: Persist) -> list[bytes]:
    """Heads and bodies of records that are seldom written."""
    parts: list[bytes] = []
    for note in persist.actors:
        if isinstance(note, Introduced):
            node = note.node_id.encode()
            body = INTRODUCED_BODY.pack(note.incarnation, note.slots, len(node)) + node + note.actor_id.encode()
            parts += (HEAD.pack(RecordKind.INTRODUCED, len(body), 0), body)
        elif isinstance(note, NodeRecord):
            body = _node_record(note)
            parts += (HEAD.pack(RecordKind.STANDING, len(body), 0), body)
        else:
            body = note.actor_id.encode()
            parts += (HEAD.pack(RecordKind.DISMISSED, len(body), 0), body)
    for known, names in persist.kinds:
        body = b"".join((PAUSED_BODY.pack(known), *(part for name in names for part in _prefixed(name))))
        parts += (HEAD.pack(RecordKind.KINDS, len(body), 0), body)
    return parts


def _node_record(note: NodeRecord) -> bytes:
    node, times = note.node_id.encode(), struct.pack(f"<{len(note.strikes)}d", *note.strikes)
    return STANDING_BODY.pack(note.until, len(note.strikes), len(node)) + times + node + note.reason.encode()


def _submitted(task: Task, time: float) -> bytes:
    task_id, kind, submitter = task.task_id.encode(), task.kind.encode(), task.submitter.encode()
    node_id, labels, _ = task.placement
    node, dependencies = node_id.encode(), task.dependencies
    head = SUBMITTED_BODY.pack(
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
    head = FINISHED_BODY.pack(
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


def _prefixed(text: str) -> tuple[bytes, bytes]:
    data = text.encode()
    return TEXT_LENGTH.pack(len(data)), data
