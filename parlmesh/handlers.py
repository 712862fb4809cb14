"""The handler interface: code that an operator installs for a kind. Knows nothing of gRPC or leases."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from parlmesh.types import Array


class RunsIn(StrEnum):
    """The place where a handler's `run` is called."""

    INLINE = "inline"
    """On the event loop, immediately: a plain function that returns within microseconds. Takes no slot."""
    LOOP = "loop"
    """On the event loop: `async def`."""
    THREAD = "thread"
    """In the slot's thread: a plain function that checks `context.cancelled` regularly."""
    PROCESS = "process"
    """In the slot's own process, which is killed to stop the attempt: a plain function."""


@dataclass(frozen=True, slots=True)
class Result:
    """A handler's answer: a JSON object and named arrays."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)


EMPTY = Result()


@dataclass(frozen=True, slots=True)
class Tail:
    """The rest of an attempt that only waits. The event loop awaits it while the slot runs the next task."""

    wait: Callable[[], Awaitable[Result | Mapping[str, Any]]]


class Cancelled(Exception):
    """Raised by `context.check()` when the result is no longer waited for."""


class HandlerError(Exception):
    """Raised by a handler that knows whether another attempt could help."""

    def __init__(self, message: str, *, retryable: bool, reason: str = "HANDLER_ERROR") -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.reason = reason


class Context:
    """One attempt, as its handler sees it."""

    __slots__ = ("actor_id", "attempt", "cancelled", "slot", "task_id")

    def __init__(self, *, task_id: str, attempt: int, actor_id: str, slot: int) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.actor_id = actor_id
        self.slot = slot
        self.cancelled = False

    def check(self) -> None:
        """Raises Cancelled when the attempt was cancelled or has run out of time."""
        if self.cancelled:
            raise Cancelled(f"task {self.task_id} was cancelled")


@runtime_checkable
class Handler(Protocol):
    """Runs the tasks of one kind. `run` is `async def` where `runs_in` is "loop", a plain function elsewhere.

    `run` returns a Result or a dict that becomes the result's parameters; in a thread it may also return a Tail. It
    raises InvalidInput when the parameters can never work. Any other exception fails the attempt and is reported with
    the frames of the handler's code. The task is retried only after an exception that says so (`retryable`), a network
    error (ConnectionError, TimeoutError) or a MemoryError.
    """

    @property
    def kind(self) -> str:
        """The kind of the tasks it runs."""
        ...

    @property
    def runs_in(self) -> str:
        """A value of RunsIn."""
        ...

    def run(
        self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context
    ) -> Result | Mapping[str, Any] | Tail | Awaitable[Result | Mapping[str, Any]]:
        """Runs one attempt."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """A handler that keeps something between tasks."""

    def reset(self) -> None:
        """Drops it; called on the event loop once no attempt of the handler is wanted any longer."""
        ...


@runtime_checkable
class Attending(Protocol):
    """A handler with background work between tasks, whether or not a scheduler is connected."""

    async def attend(self, node_id: str) -> None:
        """Runs on the event loop from the actor's start until its end cancels it; restarted when it fails."""
        ...
