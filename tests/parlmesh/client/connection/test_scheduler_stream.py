"""The client's stream: what opens it, and its writer, which outlives a stream that is given up while it writes."""

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc.aio
from google.rpc import status_pb2  # type: ignore[import-untyped]

from parlmesh.client import ClientConfig
from parlmesh.client.connection.pending_outcomes import Pending
from parlmesh.client.connection.scheduler_stream import Request, Stream
from parlmesh.errors import FleetError
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2 import StreamTerms, SubmitTaskStreamResponse

RECEIPT = SubmitTaskStreamResponse(receipts=[status_pb2.Status()])
OUTCOME = SubmitTaskStreamResponse(outcomes=[task_pb2.Outcome(task_id="t", state=task_pb2.TASK_STATE_SUCCEEDED)])
OPENING = SubmitTaskStreamResponse(terms=StreamTerms(memory_id=7), receipts=[status_pb2.Status()])


class Call:
    """As grpc's: a read or write that is under way when the call is cancelled raises CancelledError."""

    def __init__(self, stalls: bool, opening: Sequence[SubmitTaskStreamResponse] = (RECEIPT,)) -> None:
        self._stalls = stalls
        self._opening = opening
        self._receipts: asyncio.Queue[SubmitTaskStreamResponse] = asyncio.Queue()
        self._cancelled = asyncio.Event()
        self._writes = 0

    async def write(self, data: bytes) -> None:
        self._writes += 1
        if self._stalls and self._writes > 1:
            await self._cancelled.wait()
            raise asyncio.CancelledError
        for receipt in self._opening if self._writes == 1 else (RECEIPT,):
            self._receipts.put_nowait(receipt)

    async def read(self) -> SubmitTaskStreamResponse:
        receipt = asyncio.ensure_future(self._receipts.get())
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        await asyncio.wait({receipt, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        if not receipt.done():
            receipt.cancel()
            raise asyncio.CancelledError
        return receipt.result()

    def cancel(self) -> None:
        self._cancelled.set()


class Channel:
    """Its first stream stalls after the opening, the later ones work."""

    def __init__(self) -> None:
        self.opened = 0

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._open

    def _open(self) -> Call:
        self.opened += 1
        return Call(stalls=self.opened == 1)


class Prepared:
    """Requests as a test made them."""

    def __init__(self, *requests: Request) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.requests = list(requests)
        self.terms: asyncio.Queue[StreamTerms] = asyncio.Queue()

    def next_request(self) -> Request | None:
        return self.requests.pop() if self.requests else None

    def connected(self, terms: StreamTerms) -> None:
        self.terms.put_nowait(terms)


async def test_a_stream_that_is_given_up_during_a_write_is_followed_by_one_that_writes() -> None:
    channel: Any = Channel()
    answers: asyncio.Queue[FleetError | None] = asyncio.Queue()
    requests = Prepared(Request(b"first", answers.put_nowait))
    config = ClientConfig(call_seconds=0.02, reconnect_seconds=0.01)
    stream = Stream(channel, "me", Pending(), config, random.Random(0), requests=requests)

    async def keep() -> None:
        async with asyncio.TaskGroup() as group:
            await stream.run(group)

    keeper = asyncio.create_task(keep())
    async with asyncio.timeout(60):
        assert "no receipt" in str(await answers.get())
        requests.requests.append(Request(b"second", answers.put_nowait))
        requests.ready.set()
        assert await answers.get() is None
    keeper.cancel()
    await asyncio.wait({keeper}, timeout=10)
    assert keeper.cancelled()
    assert channel.opened == 2


async def test_an_outcome_before_the_first_receipt_hides_no_terms() -> None:
    """What was being written down when the stream opened is told before the receipt that is written down after it."""
    channel: Any = SimpleNamespace(
        stream_stream=lambda *_, **__: lambda: Call(stalls=False, opening=(OUTCOME, OPENING))
    )
    requests = Prepared()
    stream = Stream(channel, "me", Pending(), ClientConfig(), random.Random(0), requests=requests)

    async def keep() -> None:
        async with asyncio.TaskGroup() as group:
            await stream.run(group)

    keeper = asyncio.create_task(keep())
    async with asyncio.timeout(60):
        assert (await requests.terms.get()).memory_id == 7
    keeper.cancel()
    await asyncio.wait({keeper}, timeout=10)


async def test_a_stream_that_breaks_between_an_outcome_and_the_first_receipt_is_opened_again() -> None:
    class Breaks(Call):
        async def read(self) -> SubmitTaskStreamResponse:
            if self._receipts.empty():
                raise reset_by_peer()
            return await super().read()

    calls = iter([Breaks(stalls=False, opening=(OUTCOME,)), Call(stalls=False, opening=(OPENING,))])
    channel: Any = SimpleNamespace(stream_stream=lambda *_, **__: lambda: next(calls))
    requests = Prepared()
    stream = Stream(channel, "me", Pending(), ClientConfig(reconnect_seconds=0.01), random.Random(0), requests=requests)

    async def keep() -> None:
        async with asyncio.TaskGroup() as group:
            await stream.run(group)

    keeper = asyncio.create_task(keep())
    async with asyncio.timeout(60):
        assert (await requests.terms.get()).memory_id == 7
    assert stream.connections == 1
    keeper.cancel()
    await asyncio.wait({keeper}, timeout=10)
    assert keeper.cancelled()


def reset_by_peer() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details="Stream removed")
