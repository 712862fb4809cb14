"""The busy messages, read and written by hand: only the fields that the core needs, all others stay encoded.

protobuf parses every message first, in C, so that all bytes that are kept are known to be valid. Messages of an
unusual shape are read through the generated classes. An assignment is a lease in front of bytes that were encoded once
at submit, so payloads are never parsed again. The numbers are the field tags of the contract; tests compare everything
that is read and written here with the generated classes.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from parlmesh import limits
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.wire.durations import duration_bytes, short_seconds
from parlmesh.wire.fields import SMALL, read_varint, varint

from ..core.queue.submission_limits import check_size
from ..core.task import ANYWHERE, NORMAL, SUCCEEDED, AttemptEnd, LeaseName, Task
from . import messages

PART_BYTES = 256 * 1024
LONGEST_KIND = limits.KIND.most
MAX_CACHED_NAMES = 4096
# Longer names will be refused.
LONGEST_CACHED_NAME = 1024

# Tag bytes: field number * 8 + wire type (0 = varint, 2 = length-delimited). Tags that are read:
_TASKS = 0x0A
_TASK_ID, _KIND, _PAYLOAD, _PRIORITY, _MAX_ATTEMPTS, _SUBMITTER = 0x0A, 0x12, 0x1A, 0x20, 0x48, 0x52
_PLAIN = frozenset({_TASK_ID, _KIND, _PAYLOAD, _SUBMITTER})
_RESULTS = 0x1A
_LEASE, _RESULT, _RAN = 0x0A, 0x12, 0x22
# Tags that are written:
_ASSIGNMENTS, _REVOKED, _ACKNOWLEDGED, _COMMAND = b"\x12", b"\x1a", b"\x22", b"\x28"
_OUTCOMES = _RECEIPTS = b"\x0a"
_FOLLOWED = _UNKNOWN = b"\x12"
# An empty status is OK.
ACCEPTED = _RECEIPTS + b"\x00"

_names: dict[bytes, str] = {}


class Submission(NamedTuple):
    """A SubmitTaskStreamRequest."""

    tasks: list[Task]
    follow: str
    patient: bool


def tasks(data: bytes, submitter: str, run_timeout: float) -> list[Task]:
    """The tasks of a SubmitTasksRequest, which is the first field of a SubmitTaskStreamRequest."""
    return submission(data, submitter, run_timeout).tasks


def submission(data: bytes, submitter: str, run_timeout: float) -> Submission:
    """Reads a SubmitTaskStreamRequest; raises DecodeError, and InvalidInput when there are too many tasks."""
    request = pb.SubmitTaskStreamRequest.FromString(data)
    check_size(len(request.tasks))
    tasks = [
        _plain_task(data, start, end, submitter, run_timeout) or _task(data[start:end], submitter, run_timeout)
        for tag, start, end in _fields(data, 0, len(data))
        if tag == _TASKS
    ]
    return Submission(tasks, request.follow, request.patient)


def results(data: bytes, known: dict[bytes, tuple[str, int]]) -> tuple[list[AttemptEnd], list[bytes]]:
    """The results of a ConnectRequest that was parsed before, and their leases as encoded.

    `known` has (task id, lease id) of the leases sent on this stream, by their bytes, which saves reading them.
    """
    ends: list[AttemptEnd] = []
    leases: list[bytes] = []
    for tag, start, end in _fields(data, 0, len(data)):
        if tag == _RESULTS:
            attempt, lease = _plain_result(data, start, end, known) or _result(data[start:end])
            ends.append(attempt)
            leases.append(lease)
    return ends, leases


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(tag, start, end) of each field of a valid message; tags above 127 come as -1."""
    while position < end:
        tag = data[position]
        position += 1
        if tag > 0x7F:
            number, position = read_varint(data, position - 1)
            kind, tag = number & 7, -1
        else:
            kind = tag & 7
        if kind == 2:
            size = data[position]
            position += 1
            if size > 0x7F:
                size, position = read_varint(data, position - 1)
            yield tag, position, position + size
            position += size
        elif kind == 0:
            start = position
            while data[position] > 0x7F:
                position += 1
            position += 1
            yield tag, start, position
        elif kind in (1, 5):
            start, position = position, position + (8 if kind == 1 else 4)
            yield tag, start, position
        else:
            raise DecodeError("the message contains a group")


def _plain_task(data: bytes, position: int, end: int, submitter: str, run_timeout: float) -> Task | None:
    """A task without placement, dependencies and timeouts; None when it has any."""
    task_id, kind, payload, priority, max_attempts = "", "", None, NORMAL, 0
    while position < end:
        tag, size = data[position], data[position + 1]
        position += 2
        if tag == _PRIORITY and size < 0x80:
            priority = size or NORMAL
            continue
        if tag == _MAX_ATTEMPTS and size < 0x80:
            max_attempts = size
            continue
        if tag not in _PLAIN:
            return None
        if size > 0x7F:
            size, position = read_varint(data, position - 1)
        value = data[position : position + size]
        position += size
        if tag == _TASK_ID:
            task_id = value.decode()
        elif tag == _KIND:
            kind = _name(value)
        elif tag == _SUBMITTER:
            submitter = _name(value) or submitter
        else:
            # The pieces of a divided payload are joined.
            payload = value if payload is None else payload + value
    body = assignment_body(kind, priority, run_timeout, payload)
    return Task(task_id, kind, body, priority, (), ANYWHERE, None, None, max_attempts, submitter)


def _task(data: bytes, submitter: str, run_timeout: float) -> Task:
    spec = task_pb2.TaskSpec.FromString(data)
    task = messages.task_from_proto(spec, submitter)
    payload = spec.payload.SerializeToString() if spec.HasField("payload") else None
    task.body = assignment_body(task.kind, task.priority, max(0.0, task.run_timeout or run_timeout), payload)
    return task


def _plain_result(
    data: bytes, start: int, end: int, known: dict[bytes, tuple[str, int]]
) -> tuple[AttemptEnd, bytes] | None:
    """A success under a lease of this stream, with its fields in order; None for anything else."""
    if end - start < 4 or data[start] != _LEASE or data[start + 1] > 0x7F:
        return None
    position = start + 2 + data[start + 1]
    lease = data[start + 2 : position]
    name = known.get(lease)
    if name is None or position >= end or data[position] != _RESULT:
        return None
    size = data[position + 1]
    position += 2
    if size > 0x7F:
        size, position = read_varint(data, position - 1)
    result = data[position : position + size]
    position += size
    ran = 0.0
    if position < end:
        if data[position] != _RAN or position + 2 + data[position + 1] != end:
            return None
        ran = short_seconds(data[position + 2 : end])
        if ran < 0.0:
            return None
    return (name[0], name[1], result, None, ran), lease


def _result(data: bytes) -> tuple[AttemptEnd, bytes]:
    message = fleet_pb.TaskResult.FromString(data)
    return messages.result_from_proto(message), message.lease.SerializeToString()


def _name(data: bytes) -> str:
    """Kinds and submitters are few: a million tasks share their strings."""
    name = _names.get(data)
    if name is None:
        if len(data) > LONGEST_CACHED_NAME:
            return data.decode()
        if len(_names) >= MAX_CACHED_NAMES:
            _names.clear()
        name = _names[data] = data.decode()
    return name


def receipt(status: Any) -> bytes:
    """One receipt of a SubmitTaskStreamResponse, from a google.rpc.Status."""
    return _delimited(_RECEIPTS, status.SerializeToString())


def assignment_body(kind: str, priority: int, run_timeout: float, payload: bytes | None) -> bytes:
    """An Assignment without its lease."""
    # A kind that is too long is about to be refused, and not worth remembering.
    head = (_body_head if len(kind) <= LONGEST_KIND else _body_head.__wrapped__)(kind, priority, run_timeout)
    return head if payload is None else head + b"\x1a" + varint(len(payload)) + payload


def payload_bytes(body: bytes) -> int:
    """Encoded size of the payload in an assignment without its lease."""
    return sum(end - start for tag, start, end in _fields(body, 0, len(body)) if tag == _PAYLOAD)


@lru_cache(maxsize=1024)
def _body_head(kind: str, priority: int, run_timeout: float) -> bytes:
    """Cached, because tasks differ far more in their payloads."""
    return (
        _delimited(b"\x12", kind.encode())
        + b"\x20"
        + varint(priority)
        + _delimited(b"\x2a", duration_bytes(run_timeout))
    )


def lease(task_id: str, lease_id: int, attempt: int) -> bytes:
    name = task_id.encode()
    return b"".join((b"\x0a", varint(len(name)), name, b"\x10", varint(lease_id), b"\x18", varint(attempt)))


def assignments(
    tasks: Iterable[Task], known: dict[bytes, tuple[str, int]], inputs_of: Callable[[Task], bytes] = lambda task: b""
) -> list[bytes]:
    """Parts of a ConnectResponse: as few as their size allows. Their leases are entered in `known`."""
    joined: list[bytes] = []
    parts: list[bytes] = []
    total = 0
    for task in tasks:
        encoded = lease(task.task_id, task.lease_id, task.attempts)
        known[encoded] = (task.task_id, task.lease_id)
        # A lease is shorter than 2^14 bytes: names are bounded.
        length = SMALL[len(encoded)]
        body = task.body + inputs_of(task) if task.dependencies else task.body
        size = 1 + len(length) + len(encoded) + len(body)
        if parts and total + size > PART_BYTES:
            joined.append(b"".join(parts))
            parts, total = [], 0
        parts += (_ASSIGNMENTS, varint(size), b"\x0a", length, encoded, body)
        total += size
    if parts:
        joined.append(b"".join(parts))
    return joined


def revoked(leases: Iterable[LeaseName]) -> list[bytes]:
    """Parts of a ConnectResponse."""
    return [_delimited(_REVOKED, lease(*name)) for name in leases]


def acknowledged(leases: Iterable[bytes]) -> list[bytes]:
    """Part of a ConnectResponse; the leases are encoded already."""
    return [b"".join([part for lease in leases for part in (_ACKNOWLEDGED, varint(len(lease)), lease)])]


def command(number: int) -> bytes:
    """Part of a ConnectResponse."""
    return _COMMAND + varint(number)


def outcome(task: Task) -> bytes:
    """An Outcome of a final task."""
    name, actor_id = task.task_id.encode(), task.actor_id.encode()
    queued, ran = duration_bytes(task.queued_seconds), duration_bytes(task.ran)
    if task.state is SUCCEEDED:
        end = b"\x1a" + varint(len(task.result)) + task.result
    else:
        end = _delimited(b"\x22", _failure(task))
    return b"".join(
        (
            b"\x0a",
            SMALL[len(name)],
            name,
            b"\x10",
            SMALL[task.state],
            end,
            b"\x28",
            varint(task.attempts),
            b"\x32",
            SMALL[len(actor_id)],
            actor_id,
            b"\x3a",
            SMALL[len(queued)],
            queued,
            b"\x42",
            SMALL[len(ran)],
            ran,
        )
    )


def _failure(task: Task) -> bytes:
    if task.failure is None:
        return b""
    reason, message, retryable = task.failure
    encoded = _delimited(b"\x0a", reason.encode()) + _delimited(b"\x12", message.encode())
    return encoded + b"\x18\x01" if retryable else encoded


def outcomes(tasks: Iterable[Task]) -> list[bytes]:
    """Parts of a WatchTasksResponse."""
    return [_delimited(_OUTCOMES, outcome(task)) for task in tasks]


def unknown(task_ids: Iterable[str]) -> list[bytes]:
    """Parts of a WatchTasksResponse."""
    return [_delimited(_UNKNOWN, task_id.encode()) for task_id in task_ids]


def followed(tasks: Iterable[Task]) -> list[bytes]:
    """Parts of a SubmitTaskStreamResponse."""
    return [_delimited(_FOLLOWED, outcome(task)) for task in tasks]


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data
