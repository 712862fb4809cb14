"""What stands before every servicer: identity, errors as statuses, metrics. Wraps each handler once, for all calls."""

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, NamedTuple, Never

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from parlmesh.errors import FleetError, InvalidInput, Unavailable
from parlmesh.security.guard import Guard
from parlmesh.security.roles import OPEN_METHODS
from parlmesh.telemetry import get_logger

from .bodies import Bodies
from .caller import set_caller
from .errors import DETAILS_KEY, fleet_error_in, status_code, status_from_error
from .metrics import DURATION, OTHER, REFUSED, REQUESTS

# The stubs of grpc's handlers and contexts know only the synchronous stack.
Handler = Any
Context = Any
Behaviour = Callable[[Any, Context], Coroutine[Any, Any, Any]]

log = get_logger("parlmesh.rpc")
audit = get_logger("parlmesh.audit")


class _Shape(NamedTuple):
    """Which sides of a method are streams."""

    request_streaming: bool
    response_streaming: bool


class Gate(grpc.aio.ServerInterceptor):
    """The one interceptor of a FleetServer."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._bodies = Bodies()
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
            return self._refusing(handler, method, error)
        # This runs in the task that will run the handler, so the context variable reaches it.
        set_caller(identity)
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            reads = self._bodies if method in OPEN_METHODS else None
            wrapped = self._wrapped[method] = _wrap(handler, method, reads)
        return wrapped

    def _refusing(self, handler: Handler, method: str, error: Exception) -> Handler:
        """A handler that answers with the refusal. It has the shape of a stream, so that no body is read before it."""

        async def refuse(_: Any, context: Context) -> Never:
            if isinstance(error, FleetError):
                _report(error, method, context)
            if handler.request_streaming:
                await self._bodies.discard_first(context.read)
            raise error

        shape = _Shape(request_streaming=True, response_streaming=handler.response_streaming)
        return _handler_like(shape, _settled(refuse, method, timed=False), None, None)


def _report(error: FleetError, method: str, context: Context) -> None:
    REFUSED.labels(error.reason.lower()).inc()
    audit.warning(
        "call_refused",
        method=method,
        peer=context.peer(),
        identity=error.metadata.get("identity"),
        reason=error.reason.lower(),
    )


def _wrap(handler: Handler, method: str, bodies: Bodies | None) -> Handler:
    """The same handler, in which nothing but a status can go wrong.

    Single messages are parsed and serialised in here: grpc would send the text of an exception to the client.
    With `bodies` anyone may call, and the single message is read in here too, when it is its turn.
    """
    shape = _Shape(handler.request_streaming, handler.response_streaming)
    parse = _parser(handler.request_deserializer)
    serialize = handler.response_serializer
    if bodies is not None and not shape.request_streaming:
        shape = _Shape(request_streaming=True, response_streaming=shape.response_streaming)

    async def request_of(given: Any, context: Context) -> Any:
        if handler.request_streaming:
            return given
        return parse(given if bodies is None else await bodies.read(context.read))

    if handler.response_streaming:
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        stream = _pump(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour

        async def run(request: Any, context: Context) -> Any:
            await stream(await request_of(request, context), context)
    else:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def run(request: Any, context: Context) -> Any:
            answer = await behaviour(await request_of(request, context), context)
            return serialize(answer) if serialize is not None else answer

    unary = not (handler.request_streaming or handler.response_streaming)
    return _handler_like(shape, _settled(run, method, timed=unary), parse if bodies is None else None, serialize)


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
            known = fleet_error_in(error) or _malformed(error) or _internal_error(error, method)
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


def _malformed(error: BaseException) -> InvalidInput | None:
    """What a servicer that reads bytes itself raises on those that are no message: never a defect."""
    if isinstance(error, BaseExceptionGroup):
        found = [_malformed(inner) or fleet_error_in(inner) for inner in error.exceptions]
        return next((one for one in found if isinstance(one, InvalidInput)), None) if None not in found else None
    if isinstance(error, DecodeError):
        return InvalidInput("a message cannot be parsed", reason="MALFORMED_MESSAGE")
    return None


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


def _handler_like(shape: _Shape, run: Behaviour, parse: Any, serialize: Any) -> Handler:
    """A handler of that shape; only streams keep their codecs, single messages pass as bytes."""
    make: Callable[..., Handler] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[shape]
    return make(
        run,
        request_deserializer=parse if shape.request_streaming else None,
        response_serializer=serialize if shape.response_streaming else None,
    )
