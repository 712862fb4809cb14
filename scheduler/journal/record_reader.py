"""Reads journal records back: whole, or only as much of them as is needed."""

import struct
from collections.abc import Iterator

from parlmesh import limits

from ..core.actions import Dismissed, Introduced, Kinds, NodeRecord, Paused, Returned
from ..core.task import ANYWHERE, Failure, Placement, Task, TaskState
from .records import (
    FINISHED_BODY,
    FORGOTTEN_BODY,
    HEAD,
    INTRODUCED_BODY,
    KIND_FINISHED,
    KIND_RETURNED_AT,
    KIND_SUBMITTED,
    LEASED_BODY,
    PAUSED_BODY,
    RETURNED_AT_BODY,
    RETURNED_BODY,
    STANDING_BODY,
    SUBMITTED_BODY,
    SUBMITTED_WHOLE,
    TEXT_LENGTH,
    DamagedJournal,
    Ended,
    Forgotten,
    Gap,
    Leased,
    RecordKind,
    StoredRecord,
    Submitted,
)

# SUBMITTED and FINISHED start with their time.
_TIME = struct.Struct("<d")
_MOST_PRIORITY = int(limits.PRIORITY.most)
_STATES = {int(state): state for state in TaskState}


def decode(batch: bytes) -> Iterator[StoredRecord]:
    for kind, number, raw in split(batch):
        yield _decode_body(kind, number, raw[HEAD.size :])


def split(batch: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(kind, task number, the whole record) of each record, without decoding it."""
    position, end = 0, len(batch)
    unpack, size = HEAD.unpack_from, HEAD.size
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
    fields = SUBMITTED_WHOLE.unpack_from(raw)
    _, _, number, time, queue_timeout, run_timeout, max_attempts, priority, *sizes = fields
    if not (1 <= priority <= _MOST_PRIORITY and time - time == 0.0):
        raise DamagedJournal(f"task number {number} has priority {priority} and was submitted at {time}")
    id_size, kind_size, submitter_size, node_size, labels, dependencies = sizes
    if node_size or labels or dependencies:
        submitted = _decode_submitted(number, raw[HEAD.size :])
        return submitted.task, submitted.time
    kind_at = SUBMITTED_WHOLE.size + id_size
    submitter_at = kind_at + kind_size
    body_at = submitter_at + submitter_size
    kind_name, submitter_name = raw[kind_at:submitter_at], raw[submitter_at:body_at]
    kind, submitter = names.get(kind_name), names.get(submitter_name)
    if kind is None or submitter is None:
        kind = names[kind_name] = kind_name.decode()
        submitter = names[submitter_name] = submitter_name.decode()
    task = Task(
        raw[SUBMITTED_WHOLE.size : kind_at].decode(),
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


def peek_task_id(submitted: bytes) -> str:
    """The id in a SUBMITTED record, without reading the rest."""
    size = SUBMITTED_BODY.unpack_from(submitted, HEAD.size)[5]
    start = HEAD.size + SUBMITTED_BODY.size
    return submitted[start : start + size].decode()


def peek_time(record: bytes) -> float:
    """When a SUBMITTED, FINISHED or RETURNED_AT record was written, by the journal's clock; 0 for any other."""
    kind = record[0]
    if kind == KIND_RETURNED_AT:
        return float(RETURNED_AT_BODY.unpack_from(record, HEAD.size)[3])
    return float(_TIME.unpack_from(record, HEAD.size)[0]) if kind in (KIND_SUBMITTED, KIND_FINISHED) else 0.0


def peek_finished(finished: bytes) -> tuple[TaskState, float]:
    """State and time of a FINISHED record."""
    fields = FINISHED_BODY.unpack_from(finished, HEAD.size)
    return _STATES[fields[4]], fields[0]


def _decode_body(kind: int, number: int, body: bytes) -> StoredRecord:
    try:
        if kind == RecordKind.SUBMITTED:
            return _decode_submitted(number, body)
        if kind == RecordKind.LEASED:
            lease_id, attempts = LEASED_BODY.unpack_from(body)
            return Leased(number, lease_id, attempts, body[LEASED_BODY.size :].decode())
        if kind == RecordKind.RETURNED:
            return Returned(number, *RETURNED_BODY.unpack(body))
        if kind == RecordKind.RETURNED_AT:
            return Returned(number, *RETURNED_AT_BODY.unpack(body))
        if kind == RecordKind.FINISHED:
            return _decode_finished(number, body)
        if kind == RecordKind.FORGOTTEN:
            return Forgotten(*FORGOTTEN_BODY.unpack(body))
        if kind == RecordKind.PAUSED:
            return Paused(body[PAUSED_BODY.size :].decode(), bool(body[0]))
        if kind == RecordKind.INTRODUCED:
            return _decode_introduced(body)
        if kind == RecordKind.DISMISSED:
            return Dismissed(body.decode())
        if kind == RecordKind.KINDS:
            return Kinds(bool(body[0]), tuple(_decode_texts(body, PAUSED_BODY.size, None)[0]))
        if kind == RecordKind.GAP:
            return Gap(number)
        if kind == RecordKind.STANDING:
            return _decode_node_record(body)
    except (struct.error, ValueError, LookupError) as error:
        raise DamagedJournal(f"a record of kind {kind} for task number {number} cannot be read: {error}") from None
    raise DamagedJournal(f"record kind {kind} is unknown; it may come from a newer scheduler")


def _decode_submitted(number: int, body: bytes) -> Submitted:
    time, queue_timeout, run_timeout, max_attempts, priority, *sizes = SUBMITTED_BODY.unpack_from(body)
    position = SUBMITTED_BODY.size
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
    """`count` texts, or all there are if None, and the position after them."""
    texts: list[str] = []
    while position < len(body) if count is None else len(texts) < count:
        (size,) = TEXT_LENGTH.unpack_from(body, position)
        position += TEXT_LENGTH.size
        texts.append(body[position : position + size].decode())
        position += size
    return texts, position


def _decode_introduced(body: bytes) -> Introduced:
    incarnation, slots, size = INTRODUCED_BODY.unpack_from(body)
    actor_at = INTRODUCED_BODY.size + size
    return Introduced(body[actor_at:].decode(), body[INTRODUCED_BODY.size : actor_at].decode(), incarnation, slots)


def _decode_node_record(body: bytes) -> NodeRecord:
    until, strikes, size = STANDING_BODY.unpack_from(body)
    node_at = STANDING_BODY.size + 8 * strikes
    times = struct.unpack_from(f"<{strikes}d", body, STANDING_BODY.size)
    return NodeRecord(body[node_at : node_at + size].decode(), times, until, body[node_at + size :].decode())


def _decode_finished(number: int, body: bytes) -> Ended:
    time, queued, ran, attempts, state, actor_size, result_size, failed, reason_size = FINISHED_BODY.unpack_from(body)
    result_at = FINISHED_BODY.size + actor_size
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
        body[FINISHED_BODY.size : result_at].decode(),
        body[result_at:reason_at],
        failure,
    )
