"""What stands before every servicer: identity, errors as statuses, metrics. Wraps each handler once, for all calls."""

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Never

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from parlmesh.errors import FleetError, InvalidInput, Unavailable
from parlmesh.security.guard import Guard
from parlmesh.telemetry import get_logger

from .caller import set_caller
from .errors import DETAILS_KEY, fleet_error_in, status_code, status_from_error
from .metrics import DURATION, OTHER, REFUSED, REQUESTS

# The stubs of grpc's handlers and contexts know only the synchronous stack.
Handler = Any
Context = Any
Behaviour = Callable[[Any, Context], Coroutine[Any, Any, Any]]

_FIRST_MESSAGE_SECONDS = 1.0

log = get_logger("parlmesh.rpc")
audit = get_logger("parlmesh.audit")


class Gate(grpc.aio.ServerInterceptor):
    """The one interceptor of a FleetServer."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            REQUESTS.labels(OTHER, grpc.StatusCode.UNIMPLEMENTED.name).inc()
            return None
        try:
            identity = self._guard.admit(method, tuple(handler_call_details.invocation_metadata))
        except Exception as error:
            return _refusing(handler, method, error)
        # This runs in the task that will run the handler, so the context variable reaches it.
        set_caller(identity)
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            wrapped = self._wrapped[method] = _wrap(handler, method)
        return wrapped


def _wrap(handler: Handler, method: str) -> Handler:
    """The same handler, in which nothing but a status can go wrong.

    Single messages are parsed and serialised in here: grpc would send the text of an exception to the client.
    """
    parse = _parser(handler.request_deserializer)
    serialize = handler.response_serializer
    if handler.response_streaming:
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        stream = _pump(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour

        async def run(request: Any, context: Context) -> Any:
            await stream(request if handler.request_streaming else parse(request), context)
    else:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def run(request: Any, context: Context) -> Any:
            answer = await behaviour(request if handler.request_streaming else parse(request), context)
            return serialize(answer) if serialize is not None else answer

    unary = not (handler.request_streaming or handler.response_streaming)
    return _handler_like(handler, _settled(run, method, timed=unary), parse, serialize)


def _refusing(handler: Handler, method: str, error: Exception) -> Handler:
    """A handler of the same shape that parses nothing and answers with the refusal."""

    async def refuse(_: Any, context: Context) -> Never:
        if isinstance(error, FleetError):
            REFUSED.labels(error.reason.lower()).inc()
            audit.warning(
                "call_refused",
                method=method,
                peer=context.peer(),
                identity=error.metadata.get("identity"),
                reason=error.reason.lower(),
            )
        if handler.request_streaming:
            # A grpc.aio client whose first message meets a closed stream reports INTERNAL and loses our status
            # (grpc issue 36066), so that message is taken, unread.
            with suppress(TimeoutError):
                await asyncio.wait_for(context.read(), _FIRST_MESSAGE_SECONDS)
        raise error

    return _handler_like(handler, _settled(refuse, method, timed=False), None, None)


def _settled(run: Behaviour, method: str, *, timed: bool) -> Behaviour:
    """Runs to a result or a status, and counts it."""
    duration = DURATION.labels(method) if timed else None

    async def settled(request: Any, context: Context) -> Any:
        started = time.perf_counter()
        code = grpc.StatusCode.UNKNOWN
        try:
            answer = await run(request, context)
            code = context.code() or grpc.StatusCode.OK
            return answer
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except grpc.aio.AbortError:
            code = context.code()
            raise
        except grpc.aio.InternalError:
            # The transport failed under a write: the client has gone. grpc deals with it.
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            known = fleet_error_in(error) or _internal_error(error, method)
            code = status_code(known)
            await _abort(context, known)
        finally:
            REQUESTS.labels(method, code.name).inc()
            if duration is not None:
                duration.observe(time.perf_counter() - started)

    return settled


def _pump(generate: Callable[[Any, Context], Any]) -> Behaviour:
    """An async generator as a coroutine that writes; grpc's own loop, but the generator is closed in time."""

    async def write_all(request: Any, context: Context) -> None:
        write = context.write
        async with aclosing(generate(request, context)) as messages:
            async for message in messages:
                await write(message)

    return write_all


def _parser(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Tells a malformed message from a defect; the only thing done per message, at the cost of a function call."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data) if deserialize is not None else data
        except DecodeError:
            raise InvalidInput(f"a message of {len(data)} bytes cannot be parsed", reason="MALFORMED_MESSAGE") from None

    return parse


def _internal_error(error: Exception, method: str) -> FleetError:
    """What the client may know of a defect: an id to find it in the log."""
    if type(error).__name__ == "_ServerStoppedError":
        # No defect: grpc raises it from a stream's read when the server stops, and gives it no public name.
        return Unavailable("the server is stopping", reason="STOPPING")
    error_id = secrets.token_hex(4)
    log.exception("internal_error", error, error_id=error_id, method=method)
    return FleetError(f"internal error {error_id}", reason="INTERNAL", error_id=error_id)


async def _abort(context: Context, error: FleetError) -> Never:
    status = status_from_error(error)
    details = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(status_code(error), status.message, trailing_metadata=details)
    raise AssertionError("abort returned")


def _handler_like(handler: Handler, run: Behaviour, parse: Any, serialize: Any) -> Handler:
    """A handler of the same shape; only streams keep their codecs, single messages pass as bytes."""
    request_streaming, response_streaming = handler.request_streaming, handler.response_streaming
    make: Callable[..., Handler] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[request_streaming, response_streaming]
    return make(
        run,
        request_deserializer=parse if request_streaming else None,
        response_serializer=serialize if response_streaming else None,
    )
