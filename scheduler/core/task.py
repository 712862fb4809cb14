"""A task, its states and its parts. Plain data: nothing here decides, and payloads are opaque bytes."""

from __future__ import annotations

import math
from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actors.placement import Actor
    from .queue.task_class import TaskClass


class TaskState(IntEnum):
    """Numbered as in the contract; from SUCCEEDED on a state is final."""

    WAITING = 1
    QUEUED = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    QUARANTINED = 7


class Priority(IntEnum):
    """Numbered as in the contract; higher comes first."""

    BACKGROUND = 1
    LOW = 2
    NORMAL = 3
    HIGH = 4
    CRITICAL = 5


class Failure(NamedTuple):
    """Why an attempt or a task did not succeed: a stable word, a sentence, and whether another try could help."""

    reason: str
    message: str
    retryable: bool = False


class Placement(NamedTuple):
    """Which actors may run a task; empty parts match all."""

    node_id: str = ""
    labels: frozenset[tuple[str, str]] = frozenset()
    message_bytes: int = 0
    """Only set in a class: bytes that an actor must be able to take in one message; 0 = any actor will do."""


class LeaseName(NamedTuple):
    """A lease as it is written on the wire."""

    task_id: str
    lease_id: int
    attempt: int


class LeaseLike(Protocol):
    """A lease as an actor names it, whatever its type."""

    @property
    def task_id(self) -> str: ...
    @property
    def lease_id(self) -> int: ...
    @property
    def attempt(self) -> int: ...


class Leaps:
    """Random distances between lease ids, so that one cannot be guessed from another."""

    def __init__(self, entropy: Callable[[int], bytes]) -> None:
        self._entropy = entropy
        self._ready: array[int] = array("H")

    def next(self) -> int:
        """The next distance; many are fetched at once."""
        if not self._ready:
            self._ready = array("H", self._entropy(512 * self._ready.itemsize))
        return self._ready.pop()


# (task id, lease id, encoded result, failure or None, seconds in the handler); a tuple for speed.
AttemptEnd = tuple[str, int, bytes, Failure | None, float]

ANYWHERE = Placement()
# The failure for an empty answer.
NO_RESULT = Failure("INVALID_RESULT", "the actor sent neither a result nor a failure")
NO_LEASE = 0
# Expiry of a lease whose assignment has not been sent; its time starts when it is.
NOT_BEGUN = math.inf
# Looking up a member of an enum class costs more than most steps of a task; busy code uses these.
WAITING, QUEUED, RUNNING, SUCCEEDED = TaskState.WAITING, TaskState.QUEUED, TaskState.RUNNING, TaskState.SUCCEEDED
NORMAL = int(Priority.NORMAL)


class Task:
    """One task from submit to the moment it is forgotten.

    A class with slots, because a million of them may wait at once. `body` is the part of an assignment that never
    changes, already encoded; `lease_id` stays set after a lease was lost, so that its result can still be taken as long
    as no other actor has been given the task.
    """

    __slots__ = (
        "actor",
        "actor_id",
        "attempts",
        "body",
        "children",
        "dependencies",
        "end_time",
        "expires_at",
        "failure",
        "failures",
        "kind",
        "lease_id",
        "lease_time",
        "leased_before",
        "losses",
        "max_attempts",
        "missing",
        "number",
        "owner",
        "placement",
        "priority",
        "queue_timeout",
        "ran",
        "ready_time",
        "result",
        "run_timeout",
        "started_at",
        "state",
        "submit_time",
        "submitter",
        "task_class",
        "task_id",
        "wake_time",
    )

    # Set on admission.
    number: int
    submit_time: float
    task_class: TaskClass
    # Set while ready: since when.
    ready_time: float
    # Set with the first lease.
    lease_time: float
    expires_at: float
    started_at: float

    def __init__(
        self,
        task_id: str,
        kind: str,
        body: bytes = b"",
        priority: int = NORMAL,
        dependencies: tuple[str, ...] = (),
        placement: Placement = ANYWHERE,
        queue_timeout: float | None = None,
        run_timeout: float | None = None,
        max_attempts: int = 0,
        submitter: str = "",
    ) -> None:
        self.task_id = task_id
        self.kind = kind
        self.body = body
        self.priority = priority
        self.dependencies = dependencies
        self.placement = placement
        self.queue_timeout = queue_timeout
        self.run_timeout = run_timeout
        self.max_attempts = max_attempts
        self.submitter = submitter
        # The owner whose allowance it counts against; set on admission, and with security only.
        self.owner = ""
        self.state: TaskState = WAITING
        self.attempts = 0
        self.failures = 0
        self.losses = 0
        self.missing = 0
        self.children: list[Task] | None = None
        self.lease_id = NO_LEASE
        self.leased_before = False
        self.actor: Actor | None = None
        self.actor_id = ""
        self.wake_time = 0.0
        self.end_time = 0.0
        self.ran = 0.0
        self.result = b""
        self.failure: Failure | None = None

    @property
    def final(self) -> bool:
        return self.state >= SUCCEEDED

    @property
    def lease(self) -> LeaseName:
        return LeaseName(self.task_id, self.lease_id, self.attempts)

    @property
    def queued_seconds(self) -> float:
        """Seconds from submit to the last lease; to the end if there was none."""
        return max(0.0, (self.lease_time if self.attempts else self.end_time) - self.submit_time)

    def __repr__(self) -> str:
        return f"Task({self.task_id!r}, {self.kind!r}, {self.state.name})"
