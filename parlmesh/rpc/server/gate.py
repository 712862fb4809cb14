"""The gate before every servicer: identity, errors as statuses, metrics. Wraps each handler once, for all calls."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from parlmesh.errors import FleetError, InvalidInput
from parlmesh.security import ANYONE, Identity
from parlmesh.security.authorisation import UNKNOWN, Guard
from parlmesh.security.quotas import QuotaConfig
from parlmesh.security.roles import OPEN_METHODS

from ..caller_identity import caller, set_caller
from ..error_statuses import status_code
from .audit import is_change, note_change
from .call_quotas import Quotas
from .element_count import check_density
from .method_shapes import (
    Behaviour,
    Context,
    Handler,
    Refused,
    Shape,
    forget_frames,
    handler_like,
    opens,
    pump,
    settled,
)
from .metrics import OTHER, REQUESTS
from .open_streams import OpenStreams
from .refusals import Refusals
from .request_sizes import largest_request
from .time_and_byte_quotas import CALL_SECONDS, Accounts, has_account, metered, paced, set_account, take_bytes
from .unproven_bodies import Bodies

_was_read: ContextVar[Callable[[], None] | None] = ContextVar("parlmesh_was_read", default=None)
"""To be called once the single message of the call is read."""


class Gate(grpc.aio.ServerInterceptor):
    """The one interceptor of a FleetServer."""

    def __init__(self, guard: Guard, quotas: QuotaConfig = QuotaConfig()) -> None:  # noqa: B008 - it is frozen
        self._guard = guard
        self._bodies = Bodies()
        self._quotas = Quotas(quotas)
        self._accounts = Accounts(quotas)
        self._refusals = Refusals(guard, self._quotas, self._accounts, self._bodies)
        self._streams = OpenStreams(guard)
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
            set_account(None)
            identity = self._guard.identify(method, tuple(handler_call_details.invocation_metadata))
            # This runs in the task that will run the handler, so the context variable reaches it.
            set_caller(identity)
            if not self._guard.permits(identity, method):
                return self._refusals.forbidding(handler, method)
            self._quotas.count_call(identity)
            if identity is not ANYONE and identity is not UNKNOWN:
                await self._count(identity, handler, method)
        except Exception as error:
            # Its frames hold all metadata that the caller sent, and the answer may have to wait.
            forget_frames(error)
            return self._refusals.answering(handler, method, error)
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            reads = self._bodies if method in OPEN_METHODS else None
            wrapped = self._wrapped[method] = _wrap(handler, method, reads, self._streams, self._was_refused)
        return wrapped

    def _was_refused(self, error: FleetError) -> None:
        self._quotas.count_refusal(caller())
        if error.reason == "MESSAGE_TOO_LARGE":
            self._quotas.leave_unread(caller())

    async def _count(self, identity: Identity, handler: Handler, method: str) -> None:
        """Counts the call against its caller's quotas; raises ResourceExhausted when they are used up."""
        task = asyncio.current_task()
        assert task is not None
        if handler.request_streaming or handler.response_streaming:
            self._quotas.open_stream(identity)
            task.add_done_callback(lambda _: self._quotas.close_stream(identity))
            self._streams.add(task, identity, method)
        account = self._accounts.open(identity)
        set_account(account)
        if not handler.request_streaming:
            if account is not None:
                account.take_seconds(CALL_SECONDS)
                await account.admit_call()
            release = await self._quotas.wait_to_be_read(identity)
            if release is not None:
                task.add_done_callback(lambda _: release())
                _was_read.set(release)


def _wrap(handler: Handler, method: str, bodies: Bodies | None, streams: OpenStreams, refused: Refused) -> Handler:
    """Wraps a handler so that it can fail only with a status.

    Single messages are parsed and serialised here, because grpc would send the text of an exception to the client. With
    `bodies` any caller may call, and the single message is read here too, when it is its turn.
    """
    shape = Shape(handler.request_streaming, handler.response_streaming)
    deserialize = handler.request_deserializer
    parse = _parser(deserialize, method)
    serialize = handler.response_serializer
    # A servicer that parses its own messages gets them straight from gRPC, unless they count against an account.
    straight = shape.request_streaming and deserialize is None and largest_request(method) is None
    if bodies is not None and not shape.request_streaming:
        shape = Shape(request_streaming=True, response_streaming=shape.response_streaming)

    async def request_of(given: Any, context: Context) -> Any:
        if handler.request_streaming:
            return paced(given, parse if straight else None)
        if bodies is not None:
            return parse(await bodies.read(context.read, context.peer()))
        # A message that cannot be parsed stays in memory until its call has ended, and keeps its place until then.
        request = parse(given)
        if (was_read := _was_read.get()) is not None:
            was_read()
        return request

    if handler.response_streaming:
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        stream = pump(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour
        stream = _audited(stream, method, streaming=True)
        opened = opens(behaviour)

        async def run(request: Any, context: Context) -> Any:
            if handler.request_streaming and not opened:
                # A write that is cancelled continues in gRPC. If it were the first, no status could be sent after it,
                # and the stream would stay open until its client stopped waiting.
                await context.send_initial_metadata(())
            await metered(stream(await request_of(request, context), context))
    else:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        behaviour = _audited(behaviour, method, streaming=handler.request_streaming)

        async def run(request: Any, context: Context) -> Any:
            answer = await metered(behaviour(await request_of(request, context), context))
            return serialize(answer) if serialize is not None else answer

    unary = not (handler.request_streaming or handler.response_streaming)
    why_ended = None if unary else streams.was_ended
    settled_run = settled(run, method, timed=unary, why_ended=why_ended, refused=refused)
    return handler_like(shape, settled_run, None if straight or bodies is not None else parse, serialize)


def _parser(deserialize: Callable[[bytes], Any] | None, method: str) -> Callable[[bytes], Any]:
    """All that is done with a message, in one function call: its bytes count against its caller's account, if any, and
    a message that is too large for its method, or malformed, is refused as the caller's mistake.

    Callers with an account, operators of a single namespace included, are strangers: density is checked for them.
    """
    largest = largest_request(method)

    def parse(data: bytes) -> Any:
        if take_bytes(len(data)) and largest is None:
            check_density(data, method)
        if largest is not None and len(data) > largest:
            raise InvalidInput(
                f"a message of {len(data)} bytes is too large for {method}; the limit is {largest}",
                reason="MESSAGE_TOO_LARGE",
                method=method,
                value=len(data),
                most=largest,
            )
        try:
            return deserialize(data) if deserialize is not None else data
        except DecodeError:
            raise InvalidInput(f"a message of {len(data)} bytes cannot be parsed", reason="MALFORMED_MESSAGE") from None

    return parse


def message_check(method: str) -> Callable[[bytes], bytes] | None:
    """What the gate does with each message of the current call, for bytes that reach its servicer in another way; None
    when its caller has no account, and is trusted."""
    return _parser(None, method) if has_account() else None


def _audited(behaviour: Behaviour, method: str, *, streaming: bool) -> Behaviour:
    """Records changes and their callers: a stream when it opens, a single call when it ends."""
    if not is_change(method):
        return behaviour

    async def audited(request: Any, context: Context) -> Any:
        identity = caller()
        if identity is ANYONE:
            return await behaviour(request, context)
        if streaming:
            note_change(method, identity, context.peer(), "OPEN", None)
            return await behaviour(request, context)
        code = grpc.StatusCode.UNKNOWN
        try:
            answer = await behaviour(request, context)
            code = context.code() or grpc.StatusCode.OK
            return answer
        except FleetError as error:
            code = status_code(error)
            raise
        finally:
            note_change(method, identity, context.peer(), code.name, request)

    return audited
