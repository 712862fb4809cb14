"""The four shapes of a gRPC method, and behaviours that can only fail with a status. Knows nothing of identities."""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, Never, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from parlmesh.errors import FleetError, InvalidInput, Unavailable
from parlmesh.telemetry import get_logger

from ..error_statuses import DETAILS_KEY, REASON_KEY, fleet_error_in, status_code, status_from_error
from .metrics import DURATION, REQUESTS

# The stubs of grpc's handlers and contexts know only the synchronous stack.
Handler = Any
Context = Any
Behaviour = Callable[[Any, Context], Coroutine[Any, Any, Any]]
WhyEnded = Callable[[], FleetError | None]
Refused = Callable[[FleetError], None]

_REFUSALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)

log = get_logger("parlmesh.rpc")

_OPENS = "parlmesh_opens"
Method = TypeVar("Method", bound=Callable[..., Any])


def opens_by_itself(method: Method) -> Method:
    """Marks a method that sends its own initial metadata before anything else: they can be sent only once."""
    setattr(method, _OPENS, True)
    return method


def opens(method: Callable[..., Any]) -> bool:
    return bool(getattr(method, _OPENS, False))


class Shape(NamedTuple):
    """Which sides of a method are streams."""

    request_streaming: bool
    response_streaming: bool


METHOD_MAKERS: Mapping[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""The function that makes a handler of each shape."""


def settled(
    run: Behaviour, method: str, *, timed: bool, why_ended: WhyEnded | None = None, refused: Refused | None = None
) -> Behaviour:
    """Runs to a result or a status, and counts it; `refused` is called for a call that is its caller's mistake."""
    duration = DURATION.labels(method) if timed else None

    async def run_settled(request: Any, context: Context) -> Any:
        started = time.perf_counter()
        code = grpc.StatusCode.UNKNOWN
        try:
            answer = await run(request, context)
            code = context.code() or grpc.StatusCode.OK
            return answer
        except asyncio.CancelledError:
            ended = why_ended() if why_ended is not None else None
            if ended is None:
                code = grpc.StatusCode.CANCELLED
                raise
            code = status_code(ended)
            await _abort(context, ended)
        except grpc.aio.AbortError:
            code = context.code()
            raise
        except Exception as error:
            if _transport_failure(error) is not None:
                # The client has gone. Until grpc has heard that, it would log a traceback of the error itself.
                code = grpc.StatusCode.CANCELLED
                raise asyncio.CancelledError from None
            known = fleet_error_in(error) or _malformed(error) or _internal_error(error, method)
            code = status_code(known)
            if refused is not None and code in _REFUSALS:
                refused(known)
            # Their frames would keep the caller's messages until the garbage collector runs, because grpc's context and
            # its error hold each other.
            del request
            forget_frames(error)
            forget_frames(known)
            await _abort(context, known)
        finally:
            REQUESTS.labels(method, code.name).inc()
            if duration is not None:
                duration.observe(time.perf_counter() - started)

    return run_settled


def pump(generate: Callable[[Any, Context], Any]) -> Behaviour:
    """An async generator as a coroutine that writes; grpc's own loop, but the generator is closed in time."""

    async def write_all(request: Any, context: Context) -> None:
        write = context.write
        async with aclosing(generate(request, context)) as messages:
            async for message in messages:
                await write(message)

    return write_all


def _malformed(error: BaseException) -> InvalidInput | None:
    """The error for bytes that a servicer reads itself and that are no message: never a defect."""
    if isinstance(error, BaseExceptionGroup):
        found = [_malformed(inner) or fleet_error_in(inner) for inner in error.exceptions]
        return next((one for one in found if isinstance(one, InvalidInput)), None) if None not in found else None
    if isinstance(error, DecodeError):
        return InvalidInput("a message cannot be parsed", reason="MALFORMED_MESSAGE")
    return None


def _transport_failure(error: Exception) -> Exception | None:
    """The write that failed because the client has gone; also from a task group, unless a defect came with it."""
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, grpc.aio.InternalError) else None
    failed, others = error.split(grpc.aio.InternalError)
    if failed is None or (others is not None and not (fleet_error_in(others) or _malformed(others))):
        return None
    return next(filter(None, map(_transport_failure, failed.exceptions)), None)


def _internal_error(error: Exception, method: str) -> FleetError:
    """The part of a defect that the client may know: an id to find it in the log."""
    if type(error).__name__ == "_ServerStoppedError":
        # Not a defect: grpc raises it from a stream's read when the server stops, and gives it no public name.
        return Unavailable("the server is stopping", reason="STOPPING")
    error_id = secrets.token_hex(4)
    log.exception("internal_error", error, error_id=error_id, method=method)
    return FleetError(f"internal error {error_id}", reason="INTERNAL", error_id=error_id)


def forget_frames(error: BaseException) -> None:
    """Drops the cause of an error: it may be large, and the error may be kept."""
    error.__traceback__ = error.__context__ = error.__cause__ = None


async def _abort(context: Context, error: FleetError) -> Never:
    status = status_from_error(error)
    details = ((DETAILS_KEY, status.SerializeToString()), (REASON_KEY, error.reason))
    await context.abort(status_code(error), status.message, trailing_metadata=details)
    raise AssertionError("abort returned")


def handler_like(shape: Shape, run: Behaviour, parse: Any, serialize: Any) -> Handler:
    """A handler of that shape; only streams keep their codecs, single messages pass as bytes."""
    return METHOD_MAKERS[shape](
        run,
        request_deserializer=parse if shape.request_streaming else None,
        response_serializer=serialize if shape.response_streaming else None,
    )
