"""What a handler is: the code an operator installed under a kind. Knows nothing of gRPC or of leases."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from parlmesh.types import Array


class RunsIn(StrEnum):
    """Where a handler's `run` is called."""

    INLINE = "inline"
    """On the event loop, at once: a plain function that returns within microseconds. Takes no slot."""
    LOOP = "loop"
    """On the event loop: `async def`."""
    THREAD = "thread"
    """In the slot's own thread: a plain function that asks `context.cancelled` now and then."""
    PROCESS = "process"
    """In a process of the slot's own, which is killed to stop it: a plain function."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a handler answers: a JSON object and named arrays."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)


EMPTY = Result()


@dataclass(frozen=True, slots=True)
class Tail:
    """The rest of an attempt that only waits. Awaited on the event loop, while the slot goes on with the next task."""

    wait: Callable[[], Awaitable[Result | Mapping[str, Any]]]


class Cancelled(Exception):
    """Raised by `context.check()` when nobody waits for the result any more."""


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

    It answers a Result, or a dict that becomes the result's parameters; in a thread also a Tail. InvalidInput says
    that the parameters can never work. Any other exception fails the task, with the frames of the handler's code. It
    is tried again only if it says so (`retryable`), or is of the network (ConnectionError, TimeoutError) or of memory.
    """

    @property
    def kind(self) -> str:
        """Name under which tasks ask for it."""
        ...

    @property
    def runs_in(self) -> str:
        """A word of RunsIn."""
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
        """Drops it; called on the loop while no attempt of the handler is wanted any more."""
        ...


@runtime_checkable
class Attending(Protocol):
    """A handler that has something to look after between tasks, with or without a scheduler."""

    async def attend(self, node_id: str) -> None:
        """Runs on the loop from the actor's start to its end, and is cancelled then; begun anew when it fails."""
        ...
