import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from actor.federation.update_uploads import Update, UpdateStream
from parlmesh.errors import DeadlineExceeded, InvalidInput, PermissionDenied, Unavailable
from parlmesh.rpc import status_from_error
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceServicer, add_FederationServiceServicer_to_server

# The generated class is abstract for mypy.
_Servicer: Any = FederationServiceServicer


class Coordinator(_Servicer):  # type: ignore[misc]
    """Answers updates of the node "bad" with a refusal; breaks streams as told."""

    def __init__(self):
        self.updates, self.messages, self.calls = [], 0, 0
        self.breaking, self.status, self.silent = 0, None, False

    async def SubmitUpdates(self, requests, context):
        self.calls += 1
        if self.status is not None:
            await context.abort(self.status, "no")
        async for request in requests:
            self.messages += 1
            receipts = []
            for part in request.parts:
                if part.HasField("header"):
                    self.updates.append([part.header, b""])
                self.updates[-1][1] += part.data
                header, data = self.updates[-1]
                if len(data) == header.size_bytes:
                    receipts.append(self.receipt(header))
            if self.breaking:
                self.breaking -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
            if receipts and not self.silent:
                await context.write(pb.SubmitUpdatesResponse(receipts=receipts))

    @staticmethod
    def receipt(header):
        if header.node_id == "bad":
            return pb.UpdateReceipt(status=status_from_error(InvalidInput("bad", reason="NORM")))
        return pb.UpdateReceipt(round=header.round)


@asynccontextmanager
async def connected():
    coordinator = Coordinator()
    server = grpc.aio.server()
    add_FederationServiceServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        opened: Any = channel.stream_stream(
            "/parlmesh.v1.FederationService/SubmitUpdates",
            response_deserializer=pb.SubmitUpdatesResponse.FromString,
        )
        stream = UpdateStream(opened, pause_seconds=0.01, rng=random.Random(0))
        try:
            yield coordinator, stream
        finally:
            await stream.close()
    await server.stop(0)


def update(node, data, number=1):
    return Update(pb.UpdateHeader(node_id=node, round=number, size_bytes=len(data)), data)


async def test_small_updates_share_a_message_large_ones_take_several_and_all_arrive_whole():
    async with connected() as (coordinator, stream):
        large = bytes(range(256)) * 5_000
        sent = [update("a", b"abc", 7), update("bad", b"de"), update("b", large, 8), update("c", b"f", 9)]
        receipts = await stream.submit(sent, 30.0)
        assert [receipt.round for receipt in receipts] == [7, 0, 8, 9]
        assert [receipt.error and receipt.error.reason for receipt in receipts] == [None, "NORM", None, None]
        assert [data for _, data in coordinator.updates] == [b"abc", b"de", large, b"f"]
        assert coordinator.messages == 5
        await stream.submit([update("d", b"g")], 30.0)
        assert coordinator.calls == 1


async def test_updates_from_many_senders_at_once_get_their_own_receipts():
    async with connected() as (_, stream):
        found = await asyncio.gather(
            *(stream.submit([update("n", bytes(600_000), number)], 30.0) for number in range(1, 8))
        )
        assert [receipt.round for (receipt,) in found] == list(range(1, 8))


async def test_a_stream_that_breaks_is_opened_again_and_the_updates_are_sent_again():
    async with connected() as (coordinator, stream):
        coordinator.breaking = 2
        (receipt,) = await stream.submit([update("a", b"abc", 4)], 30.0)
        assert (receipt.round, coordinator.calls, len(coordinator.updates)) == (4, 3, 3)


async def test_who_may_not_call_at_all_is_told_at_once():
    async with connected() as (coordinator, stream):
        coordinator.status = grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(PermissionDenied):
            await stream.submit([update("a", b"abc")], 30.0)


async def test_a_receipt_that_does_not_come_in_time_is_never_taken_for_the_next():
    async with connected() as (coordinator, stream):
        coordinator.silent = True
        with pytest.raises(DeadlineExceeded):
            await stream.submit([update("a", b"abc", 1)], 0.2)
        coordinator.silent = False
        (receipt,) = await stream.submit([update("a", b"abc", 2)], 30.0)
        assert receipt.round == 2


async def test_whoever_waits_when_the_actor_leaves_is_told():
    async with connected() as (coordinator, stream):
        coordinator.silent = True
        waiting = asyncio.ensure_future(stream.submit([update("a", b"abc")], 30.0))
        async with asyncio.timeout(60.0):
            while not coordinator.updates:  # noqa: ASYNC110 - the fake has no event
                await asyncio.sleep(0.005)
        await stream.close()
        with pytest.raises(Unavailable, match="leaving"):
            await waiting


class StuckCall:
    """Takes no message, and like grpc's tells writer and reader of its cancellation by CancelledError."""

    def __init__(self):
        self.writing, self.cancelled = asyncio.Event(), asyncio.Event()

    async def write(self, message):
        self.writing.set()
        await self.read()

    async def read(self):
        await self.cancelled.wait()
        raise asyncio.CancelledError

    def cancel(self):
        self.cancelled.set()


async def test_whoever_still_writes_when_the_actor_leaves_is_told_too():
    call = StuckCall()
    stream = UpdateStream(lambda: call, pause_seconds=0.01, rng=random.Random(0))
    waiting = asyncio.ensure_future(stream.submit([update("a", b"abc")], 30.0))
    async with asyncio.timeout(60.0):
        await call.writing.wait()
    await stream.close()
    with pytest.raises(Unavailable, match="leaving"):
        await waiting


async def test_a_sender_that_is_cancelled_while_it_writes_ends_and_breaks_its_stream():
    call = StuckCall()
    stream = UpdateStream(lambda: call, pause_seconds=0.01, rng=random.Random(0))
    waiting = asyncio.ensure_future(stream.submit([update("a", b"abc")], 30.0))
    async with asyncio.timeout(60.0):
        await call.writing.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert call.cancelled.is_set()
    await stream.close()
