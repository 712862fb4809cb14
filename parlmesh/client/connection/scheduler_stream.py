"""The single stream to the scheduler: requests out, receipts and outcomes in. Reopened after a break."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput, PermissionDenied, Unauthenticated, Unavailable
from parlmesh.rpc import Backoff, being_cancelled, error_from_rpc, error_from_status
from parlmesh.telemetry import get_logger
from parlmesh.v1.scheduler_service_pb2 import StreamTerms, SubmitTaskStreamRequest, SubmitTaskStreamResponse

from ..config import ClientConfig
from .pending_outcomes import Pending

log = get_logger("parlmesh.client")

_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"

METHOD = "/parlmesh.v1.SchedulerService/SubmitTaskStream"
_FIRST_PAUSE_SECONDS = 0.05


class Request(NamedTuple):
    """An encoded SubmitTaskStreamRequest; `answer` is called once: with None when it was accepted, else with the error.

    After an error that is not a refusal it may still have been accepted.
    """

    data: bytes
    answer: Callable[[FleetError | None], None]


class Requests(Protocol):
    """The source of a stream's requests."""

    ready: asyncio.Event
    """Set whenever there may be one."""

    def next_request(self) -> Request | None:
        """The next request to send; None until `ready` is set again."""
        ...

    def connected(self, terms: StreamTerms) -> None:
        """Called when a stream is open, on the server's terms: no outcome after this is missed."""
        ...


class Stream:
    """Sends requests and settles outcomes in `pending` while `run` runs. Reopened after a break."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        submitter: str,
        pending: Pending,
        config: ClientConfig,
        rng: random.Random,
        *,
        requests: Requests,
        on_terms: Callable[[StreamTerms], None] = lambda terms: None,
    ) -> None:
        self._on_terms = on_terms
        # Requests are encoded by hand, so they stay bytes.
        self._open: Any = channel.stream_stream(METHOD, response_deserializer=SubmitTaskStreamResponse.FromString)
        self._follow = SubmitTaskStreamRequest(follow=submitter).SerializeToString()
        self._pending = pending
        self._connect_seconds = config.connect_seconds
        self._receipt_seconds = config.call_seconds
        self._backoff = Backoff(first=_FIRST_PAUSE_SECONDS, limit=config.reconnect_seconds, rng=rng)
        self._requests = requests
        self._call: Any = None
        self._terms = StreamTerms()
        self._connected = asyncio.Event()
        # Requests without a receipt; receipts come in this order.
        self._sent: deque[Request] = deque()
        self._stuck = False
        self.first_connection = asyncio.Event()
        self.connections = 0
        self.last_error: FleetError | None = None

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Reconnects until an error that no reconnection cures. Its helper tasks belong to the group."""
        group.create_task(self._write())
        group.create_task(self._watch_receipts())
        while True:
            received = self._pending.received
            self.last_error = await self._session()
            self._break(self.last_error)
            if _is_final(self.last_error):
                raise self.last_error
            if self._pending.received > received:
                self._backoff.reset()
            pause = self._backoff.next()
            log.info(
                "disconnected",
                reason=self.last_error.reason,
                pending_tasks=len(self._pending),
                retry_seconds=round(pause, 3),
            )
            await asyncio.sleep(pause)

    async def _session(self) -> FleetError:
        """Runs one stream from its opening to its end; returns why it ended."""
        # No deadline: the stream lasts as long as the client; keepalive notices a dead peer.
        call = self._open()
        try:
            self._receive(await self._opened(call))
            while isinstance(response := await call.read(), SubmitTaskStreamResponse):
                self._receive(response)
        except grpc.aio.AioRpcError as rpc_error:
            return self._told(rpc_error)
        except FleetError as error:
            return error
        except asyncio.CancelledError:
            if not self._stuck or being_cancelled():
                raise
            return DeadlineExceeded(f"the scheduler gave no receipt within {self._receipt_seconds:g} s")
        finally:
            call.cancel()
        return Unavailable("the scheduler ended the stream", reason="STREAM_ENDED")

    def _told(self, error: grpc.aio.AioRpcError) -> FleetError:
        """Names an untrusted certificate, which gRPC reports as an unavailable server; not after a good connection."""
        if not self.connections and _UNTRUSTED in (error.details() or ""):
            message = "the scheduler's certificate was not issued by the authority in security.ca, or has expired"
            return Unauthenticated(message, reason="SECURITY")
        return error_from_rpc(error)

    async def _opened(self, call: Any) -> SubmitTaskStreamResponse:
        """Opens the stream: from its first receipt on, no outcome is missed."""
        try:
            async with asyncio.timeout(self._connect_seconds):
                await call.write(self._follow)
                response = await call.read()
        except TimeoutError:
            raise DeadlineExceeded(f"the scheduler opened no stream within {self._connect_seconds:g} s") from None
        except asyncio.InvalidStateError:
            response = await call.read()  # raises the error that ended the call
        if not isinstance(response, SubmitTaskStreamResponse):
            raise Unavailable("the scheduler ended the stream", reason="STREAM_ENDED")
        self._sent.append(Request(self._follow, self._followed))
        self._call, self._stuck, self._terms = call, False, StreamTerms()
        return response

    def _followed(self, error: FleetError | None) -> None:
        if error is not None:
            raise error
        self.connections += 1
        self._connected.set()
        self.first_connection.set()
        self._requests.connected(self._terms)

    def _receive(self, response: SubmitTaskStreamResponse) -> None:
        self._pending.take(response.outcomes)
        if response.HasField("terms"):
            # Mostly in the first message; outcomes that were being written down before the receipt come earlier.
            self._terms = response.terms
            self._on_terms(response.terms)
        for status in response.receipts:
            self._sent.popleft().answer(error_from_status(status) if status.code else None)

    async def _write(self) -> None:
        while True:
            await self._requests.ready.wait()
            if not self._connected.is_set():
                await self._connected.wait()
            request = self._requests.next_request()
            if request is None:
                self._requests.ready.clear()
                continue
            self._sent.append(request)
            call = self._call
            try:
                await call.write(request.data)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                if being_cancelled():
                    raise
                # The stream has ended, and its reader tells every request why; a new one may be open already.
                if call is self._call:
                    self._connected.clear()

    async def _watch_receipts(self) -> None:
        """Abandons a stream whose oldest request without a receipt is the same at two checks in a row."""
        oldest: Request | None = None
        while True:
            await asyncio.sleep(self._receipt_seconds)
            before, oldest = oldest, self._sent[0] if self._sent else None
            if oldest is not None and oldest is before:
                self._stuck = True
                self._call.cancel()

    def _break(self, error: FleetError) -> None:
        self._connected.clear()
        sent, self._sent = self._sent, deque()
        for request in sent:
            # The next stream begins with its own; an outcome may come before the receipt for this one.
            if request.data is not self._follow:
                request.answer(error)


def _is_final(error: FleetError) -> bool:
    """Whether no reconnection cures the error."""
    return isinstance(error, (Unauthenticated, PermissionDenied, InvalidInput)) or error.reason == "UNIMPLEMENTED"
