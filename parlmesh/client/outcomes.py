"""A task's outcome as the caller sees it: a value, or an error returned as a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from parlmesh.blobs import Reference
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput, NotFound, Unavailable
from parlmesh.exception_text import first_line, frames_of
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import TensorLimits, payload_from_proto
from parlmesh.wire.payloads import references_in

from .large_arrays import Arrays

OUTCOME_FORGOTTEN = "OUTCOME_FORGOTTEN"
# The scheduler has already checked its size.
_LIMITS = TensorLimits(max_bytes=1 << 30)


class OutcomeState(StrEnum):
    """How a task ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    """Too many actors were lost while they ran it (three, unless the scheduler is set otherwise)."""
    REFUSED = "refused"
    """Never accepted by the scheduler, so it never ran."""
    ABANDONED = "abandoned"
    """No longer waited for: its end is unknown, and the scheduler was asked to cancel it."""
    FORGOTTEN = "forgotten"
    """Accepted, and its end was kept no longer than the scheduler's retention while this client was away."""


_STATES: Mapping[int, OutcomeState] = {
    pb.TASK_STATE_SUCCEEDED: OutcomeState.SUCCEEDED,
    pb.TASK_STATE_FAILED: OutcomeState.FAILED,
    pb.TASK_STATE_CANCELLED: OutcomeState.CANCELLED,
    pb.TASK_STATE_QUARANTINED: OutcomeState.QUARANTINED,
}

# A reason without a row is a plain FleetError with that reason.
_ERRORS: Mapping[str, type[FleetError]] = {
    "ACTOR_LOST": Unavailable,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "DEPENDENCY_FAILED": FailedPrecondition,
    "INVALID_PARAMETERS": InvalidInput,
    "QUEUE_TIMEOUT": DeadlineExceeded,
    "UNKNOWN_KIND": FailedPrecondition,
}


@dataclass(frozen=True, slots=True)
class Unsent:
    """An end that no scheduler sent."""

    state: OutcomeState
    error: FleetError


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Outcome:
    """Exactly one per task. Decoded when it is looked at, so that a million no-ops cost little."""

    task_id: str
    index: int
    """Position of the task in the call that waited for it; 0 for a task submitted alone."""
    _end: pb.Outcome | Unsent
    _arrays: Arrays | None = None
    _decoded: tuple[dict[str, Any], dict[str, Array]] = field(init=False)

    def __init__(self, task_id: str, index: int, _end: pb.Outcome | Unsent, _arrays: Arrays | None = None) -> None:
        _set_task_id(self, task_id)
        _set_index(self, index)
        _set_end(self, _end)
        _set_arrays(self, _arrays)

    @property
    def state(self) -> OutcomeState:
        """How it ended."""
        if isinstance(self._end, Unsent):
            return self._end.state
        return _STATES.get(self._end.state, OutcomeState.FAILED)

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self._proto.state == pb.TASK_STATE_SUCCEEDED

    @property
    def value(self) -> dict[str, Any] | None:
        """The handler's answer; None if the task did not succeed."""
        return self._payload()[0] if self.ok else None

    @property
    def tensors(self) -> dict[str, Array]:
        """The arrays in the handler's answer, read-only; empty if the task did not succeed."""
        return self._payload()[1] if self.ok else {}

    @property
    def error(self) -> FleetError | None:
        """Why it did not succeed; `reason` is the stable word."""
        if isinstance(self._end, Unsent):
            return self._end.error
        if self.ok:
            return None
        failure = self._proto.failure
        reason = failure.reason or self.state.name
        message = first_line(failure.message) or f"task {self.task_id} ended {self.state}"
        kind = _ERRORS.get(reason, FleetError)
        error = kind(message, reason=reason, task_id=self.task_id, retryable=failure.retryable)
        if self.traceback:
            error.add_note(f"on actor {self.actor_id}:\n{self.traceback}")  # Python shows it below the error
        return error

    @property
    def traceback(self) -> str:
        """Where the handler's code raised the error that failed the task: file, line and source, outermost first; or
        empty."""
        return frames_of(self._proto.failure.message)

    @property
    def attempts(self) -> int:
        """Attempts made, the last included."""
        return self._proto.attempts

    @property
    def actor_id(self) -> str:
        """Actor of the last attempt; empty when none was made."""
        return self._proto.actor_id

    @property
    def queued_seconds(self) -> float:
        """Seconds from submit to the last lease."""
        return self._proto.queued.ToNanoseconds() / 1e9

    @property
    def ran_seconds(self) -> float:
        """Seconds from the last lease to the end."""
        return self._proto.ran.ToNanoseconds() / 1e9

    @property
    def size_bytes(self) -> int:
        """Length of the encoded outcome."""
        return self._proto.ByteSize()

    def unwrap(self) -> dict[str, Any]:
        """The value; raises the error when there is none."""
        error = self.error
        if error is not None:
            raise error
        return self._payload()[0]

    def at(self, index: int) -> "Outcome":
        """The same end for another waiter."""
        return self if index == self.index else Outcome(self.task_id, index, self._end, self._arrays)

    @property
    def references(self) -> list[Reference]:
        """References to the arrays that are kept beside it; `tensors` opens them."""
        return references_in(self._proto.result) if self.ok else []

    @property
    def local(self) -> bool:
        """Whether its arrays are on this host."""
        return self._arrays is None or self._arrays.exchange.blobs.shared or not self.references

    async def fetch(self) -> None:
        """Brings its arrays from another host, as `tensors` needs them; nothing to do on the scheduler's own."""
        if self._arrays is not None and self.ok:
            await self._arrays.fetch(self.task_id, self._proto.result)

    def release(self) -> None:
        """Releases its arrays; those that were opened stay valid."""
        if self._arrays is not None and (references := self.references):
            self._arrays.release(self.task_id, references)

    def release_with(self, holder: object) -> None:
        """Releases its arrays once an object no longer exists."""
        if self._arrays is not None:
            self._arrays.release_with(holder, self.task_id, self.references)

    def __repr__(self) -> str:
        end = f"value={self.value}" if self.ok else f"error={self.error!r}"
        return f"Outcome({self.task_id!r}, {self.state.value}, {end})"

    @property
    def _proto(self) -> pb.Outcome:
        return _NOTHING if isinstance(self._end, Unsent) else self._end

    def _payload(self) -> tuple[dict[str, Any], dict[str, Array]]:
        try:
            return self._decoded
        except AttributeError:
            load = None if self._arrays is None else self._arrays.load
            object.__setattr__(self, "_decoded", payload_from_proto(self._proto.result, _LIMITS, load))
            return self._decoded


_NOTHING = pb.Outcome()

# How a frozen class is filled: a generated __init__ takes four times as long, and this is done for every task.
_set_task_id: Callable[[Outcome, str], None] = vars(Outcome)["task_id"].__set__
_set_index: Callable[[Outcome, int], None] = vars(Outcome)["index"].__set__
_set_end: Callable[[Outcome, pb.Outcome | Unsent], None] = vars(Outcome)["_end"].__set__
_set_arrays: Callable[[Outcome, Arrays | None], None] = vars(Outcome)["_arrays"].__set__


def refused(task_id: str, index: int, error: FleetError) -> Outcome:
    """The outcome of a task that was never accepted."""
    return Outcome(task_id, index, Unsent(OutcomeState.REFUSED, error))


def forgotten(task_id: str, index: int, error: FleetError | None = None) -> Outcome:
    """The outcome of a task whose end is no longer known. It is not run again: it may have run."""
    text = f'task "{task_id}" was accepted, and its outcome is no longer kept (the scheduler\'s retention)'
    return Outcome(task_id, index, Unsent(OutcomeState.FORGOTTEN, error or NotFound(text, reason=OUTCOME_FORGOTTEN)))


def abandoned(task_id: str, index: int, error: FleetError) -> Outcome:
    """The outcome of a task that is no longer waited for."""
    return Outcome(task_id, index, Unsent(OutcomeState.ABANDONED, error))
