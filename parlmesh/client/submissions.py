"""The stream that carries requests to the scheduler: opened when it is needed, and again after it broke."""

import asyncio
from collections import deque
from typing import Any

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, Unavailable
from parlmesh.rpc import error_from_rpc, error_from_status
from parlmesh.v1.scheduler_service_pb2 import SubmitTaskStreamResponse

METHOD = "/parlmesh.v1.SchedulerService/SubmitTaskStream"

Receipts = deque[asyncio.Future[None]]


class Submissions:
    """Requests are encoded by hand, so they stay bytes. Receipts come in the order of the requests."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._open: Any = channel.stream_stream(METHOD, response_deserializer=SubmitTaskStreamResponse.FromString)
        self._writing = asyncio.Lock()
        self._group: asyncio.TaskGroup | None = None
        self._call: Any = None
        self._receipts: Receipts = deque()

    def start(self, group: asyncio.TaskGroup) -> None:
        """Readers of receipts belong to the group."""
        self._group = group

    async def submit(self, request: bytes, seconds: float) -> None:
        """Returns when the request is accepted; raises why not. After an error it may be accepted all the same."""
        try:
            async with asyncio.timeout(seconds):
                await (await self._sent(request))
        except TimeoutError:
            raise DeadlineExceeded(f"the scheduler gave no receipt within {seconds:g} s") from None

    async def _sent(self, request: bytes) -> asyncio.Future[None]:
        receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with self._writing:
            if self._call is None:
                self._connect()
            self._receipts.append(receipt)
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The stream has ended; its reader tells every receipt why.
                self._call = None
        return receipt

    def _connect(self) -> None:
        assert self._group is not None
        # No deadline: the stream lives as long as the client; keepalive notices a peer that is gone.
        self._call, self._receipts = self._open(), deque()
        self._group.create_task(self._read(self._call, self._receipts))

    async def _read(self, call: Any, receipts: Receipts) -> None:
        try:
            error = await _settle(call, receipts)
        finally:
            call.cancel()
            if self._call is call:
                self._call = None
        for receipt in receipts:
            if not receipt.done():
                receipt.set_exception(error)


async def _settle(call: Any, receipts: Receipts) -> FleetError:
    """Hands out receipts until the stream ends; why it did."""
    try:
        while isinstance(response := await call.read(), SubmitTaskStreamResponse):
            for status in response.receipts:
                receipt = receipts.popleft()
                # Whoever waited may have gone.
                if receipt.done():
                    continue
                if status.code:
                    receipt.set_exception(error_from_status(status))
                else:
                    receipt.set_result(None)
    except grpc.aio.AioRpcError as rpc_error:
        return error_from_rpc(rpc_error)
    return Unavailable("the scheduler ended the stream", reason="STREAM_ENDED")
