"""The busy messages read by hand: only what the core needs, everything else stays encoded.

protobuf parses every message first, in C and thrown away, so that whatever is kept as bytes is known to be valid.
What is not of the usual shape is read through the generated classes; a test compares both ways.
"""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.wire.varint import read_varint

from ..core.submission_limits import check_size
from ..core.task import ANYWHERE, NORMAL, AttemptEnd, Task
from . import fast_encode, messages

NANOSECONDS = 1_000_000_000
MAX_CACHED_NAMES = 4096
# Longer ones are about to be refused.
LONGEST_CACHED_NAME = 1024

# Tag bytes: field number * 8 + wire type (0 = varint, 2 = length-delimited).
_TASKS = 0x0A
_TASK_ID, _KIND, _PAYLOAD, _PRIORITY, _MAX_ATTEMPTS, _SUBMITTER = 0x0A, 0x12, 0x1A, 0x20, 0x48, 0x52
_PLAIN = frozenset({_TASK_ID, _KIND, _PAYLOAD, _SUBMITTER})
_RESULTS = 0x1A
_LEASE, _RESULT, _RAN = 0x0A, 0x12, 0x22

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
    """A SubmitTaskStreamRequest; InvalidInput when there are too many tasks. Raises DecodeError."""
    request = pb.SubmitTaskStreamRequest.FromString(data)
    check_size(len(request.tasks))
    tasks = [
        _plain_task(data, start, end, submitter, run_timeout) or _task(data[start:end], submitter, run_timeout)
        for tag, start, end in _fields(data, 0, len(data))
        if tag == _TASKS
    ]
    return Submission(tasks, request.follow, request.patient)


def results(data: bytes, known: dict[bytes, tuple[str, int]]) -> tuple[list[AttemptEnd], list[bytes]]:
    """The results of a ConnectRequest that was parsed before, and their leases as they came.

    `known` has the leases that were sent on this stream, (task id, lease id) by their bytes; it saves reading them.
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
            # A payload in two pieces is the two pieces joined.
            payload = value if payload is None else payload + value
    body = fast_encode.assignment_body(kind, priority, run_timeout, payload)
    return Task(task_id, kind, body, priority, (), ANYWHERE, None, None, max_attempts, submitter)


def _task(data: bytes, submitter: str, run_timeout: float) -> Task:
    return messages.task_from_proto(task_pb2.TaskSpec.FromString(data), submitter, run_timeout)


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
        ran = _short_seconds(data, position + 2, end)
        if ran < 0.0:
            return None
    return (name[0], name[1], result, None, ran), lease


def _result(data: bytes) -> tuple[AttemptEnd, bytes]:
    message = fleet_pb.TaskResult.FromString(data)
    return messages.result_from_proto(message), message.lease.SerializeToString()


def _short_seconds(data: bytes, start: int, end: int) -> float:
    """A Duration of less than a second; -1 for any other."""
    if start == end:
        return 0.0
    if data[start] != 0x10:
        return -1.0
    nanos, length = read_varint(data[start + 1 : end], 0)
    return nanos / NANOSECONDS if start + 1 + length == end and nanos < NANOSECONDS else -1.0


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
