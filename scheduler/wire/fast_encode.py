"""Messages of the busy streams written by hand, byte for byte as protobuf reads them.

An assignment is a lease in front of bytes that were encoded once at submit, so payloads are never parsed again. The
numbers are the field tags of the contract; a test parses everything written here with the generated classes.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from parlmesh import limits
from parlmesh.wire.varint import LOW, SMALL, varint

from ..core.task import SUCCEEDED, LeaseName, Task

NANOSECONDS = 1_000_000_000
PART_BYTES = 256 * 1024
LONGEST_KIND = limits.KIND.most

# Tag bytes: field number * 8 + wire type (0 = varint, 2 = length-delimited).
_ASSIGNMENTS, _REVOKED, _ACKNOWLEDGED, _COMMAND = b"\x12", b"\x1a", b"\x22", b"\x28"
_OUTCOMES = _RECEIPTS = b"\x0a"
_FOLLOWED = _UNKNOWN = b"\x12"
# An empty status is OK.
ACCEPTED = _RECEIPTS + b"\x00"


def _delimited(tag: bytes, data: bytes) -> bytes:
    return tag + varint(len(data)) + data


def receipt(status: Any) -> bytes:
    """One receipt of a SubmitTaskStreamResponse, from a google.rpc.Status."""
    return _delimited(_RECEIPTS, status.SerializeToString())


def duration(seconds: float) -> bytes:
    """google.protobuf.Duration; not negative."""
    nanos = int(seconds * NANOSECONDS)
    if nanos < 1 << 14:
        return b"\x10" + SMALL[nanos] if nanos else b""
    if nanos < 1 << 28:
        return b"\x10" + LOW[nanos & 0x3FFF] + SMALL[nanos >> 14]
    whole, nanos = divmod(nanos, NANOSECONDS)
    return b"\x08" + varint(whole) + (b"\x10" + varint(nanos) if nanos else b"")


def assignment_body(kind: str, priority: int, run_timeout: float, payload: bytes | None) -> bytes:
    """An Assignment without its lease."""
    # A kind that is too long is about to be refused, and not worth remembering.
    head = (_body_head if len(kind) <= LONGEST_KIND else _body_head.__wrapped__)(kind, priority, run_timeout)
    return head if payload is None else head + b"\x1a" + varint(len(payload)) + payload


@lru_cache(maxsize=1024)
def _body_head(kind: str, priority: int, run_timeout: float) -> bytes:
    """Tasks differ in their payloads far more than in these."""
    return _delimited(b"\x12", kind.encode()) + b"\x20" + varint(priority) + _delimited(b"\x2a", duration(run_timeout))


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
    queued, ran = duration(task.queued_seconds), duration(task.ran)
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
