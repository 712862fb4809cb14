"""A task as its submitter describes it. Knows nothing of the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import IntEnum
from operator import is_
from types import MappingProxyType
from typing import Any

import numpy as np

from parlmesh.blobs import Reference
from parlmesh.blobs.folder import name_behind
from parlmesh.types import Array

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Priority(IntEnum):
    """How urgent a task is. The time since it was submitted counts too, so nothing starves."""

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
    """What to run, and how. A request may be submitted many times; each time is a new task unless it has an id."""

    kind: str
    """Name of a handler that the actors' operator installed, e.g. "echo"."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """A JSON object for the handler."""
    tensors: Mapping[str, Array | Reference] = field(default_factory=dict)
    """Named arrays for the handler, or references to them."""
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
    """Submitting a known id again changes nothing, so repeating a submission is safe; empty = chosen for you."""
    holds: tuple[object, ...] = field(default=(), repr=False, compare=False)
    """Futures whose results it gets. Large results go with their futures, unless a submitted task needs them."""


def array_bytes(request: object) -> int:
    """Bytes of the arrays in it; 0 of anything that is not a request, which is refused later, by name."""
    if not isinstance(request, TaskRequest) or not isinstance(request.tensors, Mapping):
        return 0
    return sum(each.nbytes for each in request.tensors.values() if isinstance(each, np.ndarray))


def owned(request: TaskRequest) -> TaskRequest:
    """The same with parameters and arrays of its own: an iterator may use what it gave again for its next item."""
    request = with_own_arrays(request)
    if not isinstance(request, TaskRequest) or not request.parameters:
        return request
    return replace(request, parameters=copied(request.parameters))


def with_own_arrays(request: TaskRequest) -> TaskRequest:
    """The same with copies of the arrays that may change; enough for a function's call, which was packed."""
    if not array_bytes(request):
        return request
    tensors = {name: _own(each) for name, each in request.tensors.items()}
    return request if all(map(is_, tensors.values(), request.tensors.values())) else replace(request, tensors=tensors)


def copied(value: Any) -> Any:
    """A JSON value that its giver cannot change."""
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value


def _own(array: Array | Reference) -> Array | Reference:
    if not isinstance(array, np.ndarray) or _never_changes(array):
        return array
    return array.copy()


def _never_changes(array: Array) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return isinstance(base, bytes) or bool(name_behind(array))


def references_of(tensors: Mapping[str, Array | Reference]) -> frozenset[str]:
    """The names of the blobs that the tensors refer to."""
    return frozenset(each.name for each in tensors.values() if isinstance(each, Reference))


def written_for(request: TaskRequest, names: frozenset[str]) -> frozenset[str]:
    """The names that were written for the request. Blobs the caller put into it may still be needed by the caller."""
    return names - references_of(request.tensors)
