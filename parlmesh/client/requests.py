"""A task as its submitter describes it. Knows nothing of the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from google.protobuf.duration_pb2 import Duration

from parlmesh.errors import InvalidInput
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_to_proto
from parlmesh.wire.varint import SMALL, SMALL_NUMBERS, varint

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Priority(IntEnum):
    """How urgent a task is. Waiting raises a task slowly, so nothing starves."""

    BACKGROUND = 1
    LOW = 2
    NORMAL = 3
    HIGH = 4
    CRITICAL = 5


@dataclass(frozen=True, slots=True)
class Placement:
    """Which actors may run a task. Everything given must match; nothing given matches all."""

    node_id: str = ""
    """Only on this node."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Every pair must be among the actor's labels."""


ANYWHERE = Placement()


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """What to run, and how. One request may be submitted many times; each is a task of its own unless it has an id."""

    kind: str
    """Name of a handler that the actors' operator installed, e.g. "echo"."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """A JSON object for the handler."""
    tensors: Mapping[str, Array] = field(default_factory=dict)
    """Named arrays for the handler."""
    _: KW_ONLY
    priority: Priority = Priority.NORMAL
    dependencies: Sequence[str] = ()
    """Ids of tasks that must succeed first: known tasks, or tasks of the same call that have these ids."""
    placement: Placement = ANYWHERE
    queue_timeout: float | None = None
    """Longest wait for a slot, in seconds; None = no limit."""
    run_timeout: float | None = None
    """Longest run of one attempt, in seconds; None = the scheduler's default."""
    max_attempts: int = 0
    """Attempts after failures that may be retried; 0 = the scheduler's default."""
    task_id: str = ""
    """Submitting a known id again changes nothing, so a repetition is safe; empty = chosen for you."""


# Tag bytes: field number * 8 + wire type 2, length-delimited.
_TASKS, _TASK_ID, _PAYLOAD = b"\x0a", b"\x0a", b"\x1a"
_MOST_ATTEMPTS = (1 << 32) - 1
_LONGEST_SECONDS = 100 * 365 * 86400.0
_HEADS_KEPT = 1024
_PRIORITIES = frozenset(Priority)


class Encoder:
    """Encodes the tasks of one submitter. Heads are kept, because few differ."""

    def __init__(self, submitter: str) -> None:
        self._submitter = submitter
        self._heads: dict[tuple[object, ...], bytes] = {}

    def task(self, request: TaskRequest, task_id: str) -> bytes:
        """One `tasks` field of a SubmitTaskStreamRequest; InvalidInput names what cannot be sent."""
        try:
            name = task_id.encode()
            spec = _TASK_ID + varint(len(name)) + name + self._head(request)
            if request.parameters or request.tensors or request.dependencies:
                spec += _particulars(request)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidInput(f"{request!r:.200} cannot be submitted: {error}", reason="INVALID_TASK") from error
        size = len(spec)
        return _TASKS + (SMALL[size] if size < SMALL_NUMBERS else varint(size)) + spec

    def _head(self, request: TaskRequest) -> bytes:
        placement = request.placement
        if placement.labels:
            return self._encoded_head(request)
        key = (
            request.kind,
            request.priority,
            request.queue_timeout,
            request.run_timeout,
            request.max_attempts,
            placement.node_id,
        )
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            head = self._heads[key] = self._encoded_head(request)
        return head

    def _encoded_head(self, request: TaskRequest) -> bytes:
        if not isinstance(request.kind, str) or not request.kind:
            raise InvalidInput(
                f"kind is {request.kind!r}; it must be the name of a handler, e.g. echo", reason="MISSING_KIND"
            )
        if request.priority not in _PRIORITIES:
            raise InvalidInput(
                f"priority is {request.priority!r}; it goes from 1 (BACKGROUND) to 5 (CRITICAL)",
                reason="UNKNOWN_PRIORITY",
            )
        if not 0 <= request.max_attempts <= _MOST_ATTEMPTS:
            raise InvalidInput(
                f"max_attempts is {request.max_attempts!r}; it must be 0 (the scheduler's default) to {_MOST_ATTEMPTS}",
                reason="INVALID_ATTEMPTS",
            )
        spec = pb.TaskSpec(
            kind=request.kind,
            priority=pb.Priority.ValueType(request.priority),
            max_attempts=request.max_attempts,
            submitter=self._submitter,
        )
        if request.placement.node_id or request.placement.labels:
            spec.placement.CopyFrom(_placement(request.placement))
        if request.queue_timeout is not None:
            spec.queue_timeout.CopyFrom(_duration("queue_timeout", request.queue_timeout, least=0.0))
        if request.run_timeout is not None:
            spec.run_timeout.CopyFrom(_duration("run_timeout", request.run_timeout, least=0.001))
        return spec.SerializeToString()


def _particulars(request: TaskRequest) -> bytes:
    """What no other task has: payload and dependencies."""
    parts = []
    if request.parameters or request.tensors:
        payload = payload_to_proto(request.parameters, request.tensors).SerializeToString()
        parts += [_PAYLOAD, varint(len(payload)), payload]
    if request.dependencies:
        parts.append(_dependencies(request.dependencies))
    return b"".join(parts)


def _placement(placement: Placement) -> pb.Placement:
    return pb.Placement(node_id=placement.node_id, labels=dict(placement.labels))


def _duration(name: str, seconds: float, *, least: float) -> Duration:
    if not least <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput(
            f"{name} is {seconds!r} s; it must be {least:g} s to {_LONGEST_SECONDS:g} s", reason="INVALID_TIMEOUT"
        )
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _dependencies(task_ids: Sequence[str]) -> bytes:
    if isinstance(task_ids, str):
        raise InvalidInput(f"dependencies is the text {task_ids!r}; it must be a list of ids", reason="INVALID_TASK")
    return pb.TaskSpec(dependencies=task_ids).SerializeToString()
