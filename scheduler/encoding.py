"""Messages of the busy streams written by hand, byte for byte as protobuf reads them.

An assignment is a lease in front of bytes that were encoded once at submit, so payloads are never parsed again. The
numbers are the field tags of the contract; a test parses everything written here with the generated classes.
"""

from collections.abc import Iterable

from .task import LeaseName, Task, TaskState

NANOSECONDS = 1_000_000_000
SUCCEEDED = TaskState.SUCCEEDED

# Tag bytes: field number * 8 + wire type (0 = varint, 2 = length-delimited).
_ASSIGNMENTS, _REVOKED, _ACKNOWLEDGED, _COMMAND = b"\x12", b"\x1a", b"\x22", b"\x28"
_OUTCOMES = b"\x0a"


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL = [_varint(value) for value in range(1 << 14)]
# The lowest 14 bits of a larger number, with a sign that more follow.
_LOW = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]
# Lease ids are large and close together, so their upper parts repeat.
_high_parts: dict[int, bytes] = {}


def varint(value: int) -> bytes:
    if value < 1 << 14:
        return _SMALL[value]
    high = value >> 14
    encoded = _high_parts.get(high)
    if encoded is None:
        if len(_high_parts) > 1024:
            _high_parts.clear()
        encoded = _high_parts[high] = _varint(high)
    return _LOW[value & 0x3FFF] + encoded


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def duration(seconds: float) -> bytes:
    """google.protobuf.Duration; not negative."""
    nanos = int(seconds * NANOSECONDS)
    if nanos < NANOSECONDS:
        return b"\x10" + _varint(nanos) if nanos else b""
    whole, nanos = divmod(nanos, NANOSECONDS)
    return b"\x08" + varint(whole) + (b"\x10" + _varint(nanos) if nanos else b"")


def assignment_body(kind: str, priority: int, run_timeout: float, payload: bytes | None) -> bytes:
    """An Assignment without its lease."""
    head = _delimited(b"\x12", kind.encode()) + b"\x20" + varint(priority) + _delimited(b"\x2a", duration(run_timeout))
    return head if payload is None else head + _delimited(b"\x1a", payload)


def lease(task_id: str, lease_id: int, attempt: int) -> bytes:
    name = task_id.encode()
    return b"\x0a" + varint(len(name)) + name + b"\x10" + varint(lease_id) + b"\x18" + varint(attempt)


def assignments(tasks: Iterable[Task]) -> list[bytes]:
    """Parts of a ConnectResponse."""
    parts = []
    for task in tasks:
        encoded = lease(task.task_id, task.lease_id, task.attempts)
        # A lease is shorter than 2^14 bytes, and most are shorter than 2^7.
        assignment = b"\x0a" + _SMALL[len(encoded)] + encoded + task.body
        parts.append(_ASSIGNMENTS + varint(len(assignment)) + assignment)
    return parts


def revoked(leases: Iterable[LeaseName]) -> list[bytes]:
    """Parts of a ConnectResponse."""
    return [_delimited(_REVOKED, lease(*name)) for name in leases]


def acknowledged(leases: Iterable[LeaseName]) -> list[bytes]:
    """Parts of a ConnectResponse."""
    return [_delimited(_ACKNOWLEDGED, lease(*name)) for name in leases]


def command(number: int) -> bytes:
    """Part of a ConnectResponse."""
    return _COMMAND + varint(number)


def outcome(task: Task) -> bytes:
    """An Outcome of a final task."""
    name = task.task_id.encode()
    parts = [b"\x0a", varint(len(name)), name, b"\x10", _SMALL[task.state]]
    if task.state is SUCCEEDED:
        parts += (b"\x1a", varint(len(task.result)), task.result)
    elif task.failure is not None:
        reason, message, retryable = task.failure
        failure = _delimited(b"\x0a", reason.encode()) + _delimited(b"\x12", message.encode())
        parts.append(_delimited(b"\x22", failure + b"\x18\x01" if retryable else failure))
    if task.attempts:
        parts += (b"\x28", varint(task.attempts))
    if task.actor_id:
        parts.append(_delimited(b"\x32", task.actor_id.encode()))
    parts.append(_delimited(b"\x3a", duration(task.queued_seconds)))
    parts.append(_delimited(b"\x42", duration(task.ran)))
    return b"".join(parts)


def outcomes(tasks: Iterable[Task]) -> list[bytes]:
    """Parts of a WatchTasksResponse."""
    return [_delimited(_OUTCOMES, outcome(task)) for task in tasks]
