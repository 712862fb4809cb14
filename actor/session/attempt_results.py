"""Between handlers and the wire: payloads to arguments, answers to results, exceptions to typed failures."""

from collections.abc import Awaitable, Mapping

from parlmesh.argument_values import Arguments, with_results
from parlmesh.blobs import Blobs, Reference
from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput, ResourceExhausted
from parlmesh.exception_text import (
    LONGEST_TEXT,
    cut,
    first_line,
    frames_of,
    place,
    sendable,
    sentence,
    tell,
    with_frames,
)
from parlmesh.handlers import EMPTY, Cancelled, Context, Handler, HandlerError, Result, Tail
from parlmesh.types import Array
from parlmesh.v1.fleet_service_pb2 import Assignment, Lease, TaskResult
from parlmesh.v1.task_pb2 import Failure, Payload
from parlmesh.wire import payload_from_proto, payload_to_proto
from parlmesh.wire.payloads import references_in

HANDLER_ERROR = "HANDLER_ERROR"
INVALID_PARAMETERS = "INVALID_PARAMETERS"
INVALID_RESULT = "INVALID_RESULT"
DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
ACTOR_LOST = "ACTOR_LOST"
UNKNOWN_KIND = "UNKNOWN_KIND"
CANCELLED = "CANCELLED"
RESULT_MISSING = "RESULT_MISSING"
SUCCEEDED = "succeeded"

_EMPTY_PAYLOAD = Payload()
_NO_BLOBS = Blobs()
_NOTHING = Assignment()
EXITS = (SystemExit, KeyboardInterrupt)
"""Exceptions with which a handler tries to end the process. They end only its attempt; the event loop would obey them.
"""
# A plain TimeoutError and ConnectionError come from the network.
_PASSING = (FleetError, Cancelled, ConnectionError, TimeoutError, MemoryError)


def arguments_of(assignment: Assignment, blobs: Blobs) -> Arguments:
    """A handler's parameters and tensors; InvalidInput when the payload cannot be read."""
    if not assignment.HasField("payload"):
        return {}, {}

    def load(reference: Reference) -> Array:
        try:
            return blobs.load(reference)
        except FleetError as error:
            retryable = isinstance(error, ResourceExhausted)
            raise HandlerError(error.message, retryable=retryable, reason=error.reason) from None

    parameters, tensors = payload_from_proto(assignment.payload, load=load)
    if not assignment.inputs:
        return parameters, tensors
    results: dict[str, Arguments] = {}
    for given in assignment.inputs:
        if given.missing:
            raise HandlerError(given.missing, retryable=False, reason=RESULT_MISSING)
        results[given.task_id] = payload_from_proto(given.result, load=load)
    return with_results(parameters, tensors, results)


def given_to(assignment: Assignment) -> list[Reference]:
    """The arrays of its arguments, and of the results it gets, that are kept beside it."""
    found = references_in(assignment.payload)
    for given in assignment.inputs:
        found += references_in(given.result)
    return found


def payload_of(value: object, kind: str, blobs: Blobs = _NO_BLOBS, assignment: Assignment = _NOTHING) -> Payload:
    """A handler's answer as a payload; HandlerError INVALID_RESULT when it is no answer."""
    if value is EMPTY:
        return _EMPTY_PAYLOAD
    # Compared by its parts, because a handler may import it from `actor` while this process has it from
    # `parlmesh.actor`.
    if isinstance(value, Result) or (hasattr(value, "parameters") and hasattr(value, "tensors")):
        parameters, tensors = value.parameters, value.tensors
    elif isinstance(value, Mapping):
        parameters, tensors = value, {}
    else:
        if isinstance(value, Awaitable) and hasattr(value, "close"):
            value.close()
        raise HandlerError(
            f"handler {kind} answered {type(value).__name__}; it must be a Result or a dict",
            retryable=False,
            reason=INVALID_RESULT,
        )
    names: set[str] = set()
    try:
        if not tensors:
            return payload_to_proto(dict(parameters))
        given = frozenset(each.name for each in given_to(assignment))
        kept = blobs.kept(dict(tensors), f"{assignment.lease.lease_id:x}", given, names)
        return payload_to_proto(dict(parameters), kept)
    except ResourceExhausted as error:
        blobs.forget(names)
        text = f"the answer of handler {kind} cannot be kept: {error.message}"
        raise HandlerError(text, retryable=error.retry_after_seconds > 0, reason=error.reason) from error
    except Exception as error:
        blobs.forget(names)
        text = f"the answer of handler {kind} cannot be sent: {sentence(error)}"
        raise HandlerError(text, retryable=False, reason=INVALID_RESULT) from error


def call(handler: Handler, assignment: Assignment, context: Context, blobs: Blobs = _NO_BLOBS) -> Payload:
    """Runs a plain handler here and now."""
    parameters, tensors = arguments_of(assignment, blobs)
    try:
        return payload_of(handler.run(parameters, tensors, context), handler.kind, blobs, assignment)
    except Exception:
        raise
    except BaseException as error:
        raise no_exit(handler.kind, error) from error


def call_in_thread(
    handler: Handler, assignment: Assignment, context: Context, blobs: Blobs = _NO_BLOBS
) -> Payload | Tail:
    """Runs a plain handler that may leave its waiting to the event loop."""
    parameters, tensors = arguments_of(assignment, blobs)
    try:
        answer = handler.run(parameters, tensors, context)
        return answer if isinstance(answer, Tail) else payload_of(answer, handler.kind, blobs, assignment)
    except Exception:
        raise
    except BaseException as error:
        raise no_exit(handler.kind, error) from error


async def call_async(handler: Handler, assignment: Assignment, context: Context, blobs: Blobs = _NO_BLOBS) -> Payload:
    """Runs an `async def` handler."""
    parameters, tensors = arguments_of(assignment, blobs)
    try:
        answer = handler.run(parameters, tensors, context)
        value = await answer if isinstance(answer, Awaitable) else answer
        return payload_of(value, handler.kind, blobs, assignment)
    except EXITS as error:
        raise no_exit(handler.kind, error) from error


def no_exit(kind: str, error: BaseException) -> HandlerError:
    """The failure for a BaseException such as SystemExit: it fails only its attempt."""
    did = "tried to exit" if isinstance(error, EXITS) else "raised an exception that no program should catch"
    return HandlerError(f"handler {kind} {did}: {sentence(error)}", retryable=False)


def failure_of(error: BaseException) -> Failure:
    """The typed failure of an exception. For an unexpected exception, the frames follow below the sentence."""
    try:
        reason, message, retryable = _told(error)
    except Exception as worse:  # an attribute of the exception is broken
        reason, retryable = HANDLER_ERROR, False
        message = f"{type(error).__name__}, whose text cannot be read ({type(worse).__name__})"
    return Failure(reason=sendable(reason), message=sendable(message), retryable=retryable)


def _told(error: BaseException) -> tuple[str, str, bool]:
    """Reason, message, and whether another attempt could help."""
    if isinstance(error, HandlerError):
        head, below = first_line(error.message), frames_of(error.message)
        text = with_frames(cut(head), error.__cause__ if error.__cause__ and place(error.__cause__) else None)
        return error.reason, cut(f"{text}\n{below}", LONGEST_TEXT) if below else text, error.retryable
    if isinstance(error, InvalidInput):
        return INVALID_PARAMETERS, cut(error.message), False
    if isinstance(error, AttemptTimeout):
        return DEADLINE_EXCEEDED, cut(error.message), True
    reason = getattr(error, "reason", HANDLER_ERROR) if _says_itself(error) else HANDLER_ERROR
    return str(reason), tell(error), _may_pass(error)


def _says_itself(error: BaseException) -> bool:
    """Handlers that import nothing of this package raise exceptions with the attributes of HandlerError."""
    return isinstance(getattr(error, "retryable", None), bool)


def _may_pass(error: BaseException) -> bool:
    """Whether another attempt could help. A bug would fail again; the network, a peer and memory may recover."""
    if _says_itself(error):
        return bool(getattr(error, "retryable", False))
    return isinstance(error, _PASSING)


class AttemptTimeout(DeadlineExceeded):
    """The attempt ran longer than its task allows."""


def success(lease: Lease, payload: Payload, ran_seconds: float, *, limit_bytes: int) -> TaskResult:
    """The result of an attempt that ended well; INVALID_RESULT when it is too large to be sent."""
    size = 0 if payload is _EMPTY_PAYLOAD else payload.ByteSize()
    if size > limit_bytes:
        text = f"the result has {size} bytes; the limit is {limit_bytes} (the scheduler's listen.max_message_bytes)"
        return failed(lease, Failure(reason=INVALID_RESULT, message=text, retryable=False), ran_seconds)
    result = TaskResult(lease=lease, result=payload)
    _set_ran(result, ran_seconds)
    return result


def failed(lease: Lease, failure: Failure, ran_seconds: float) -> TaskResult:
    """The result of an attempt that failed."""
    result = TaskResult(lease=lease, failure=failure)
    _set_ran(result, ran_seconds)
    return result


def outcome_of(result: TaskResult) -> str:
    """One word for the metrics: succeeded, or the failure's reason."""
    return SUCCEEDED if result.HasField("result") else result.failure.reason


def _set_ran(result: TaskResult, seconds: float) -> None:
    whole = int(seconds)
    ran = result.ran
    if whole:
        ran.seconds = whole
    ran.nanos = int((seconds - whole) * 1e9)
