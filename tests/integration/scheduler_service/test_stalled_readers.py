"""Streams whose reader does not read, over real gRPC: each is bounded, ended with the reason, and may come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import wait_until_async
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub
from scheduler.build import Scheduler
from scheduler.wire import outbox, task_watches
from tests.integration.scheduler_service.conftest import SECONDS, Client, RemoteActor, noop, scheduler_of

TASKS = 60
LARGE = "x" * 200_000


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Scheduler, Client, RemoteActor]]:
    """A reader with its own channel does not share a flow-control window with the others."""
    async with scheduler_of() as scheduler, open_channel(scheduler.server.address) as channel:
        actor = RemoteActor(channel)
        await actor.connect(credits=10, slots=10)
        try:
            yield scheduler, Client(channel), actor
        finally:
            await actor.close()


async def run_large_tasks(client: Client, actor: RemoteActor) -> list[str]:
    names = [str(number) for number in range(TASKS)]
    await client.submit(*[noop(name, submitter="me") for name in names])
    for _ in names:
        (assignment,) = await actor.take()
        result = fleet_pb.TaskResult(lease=assignment.lease, ran=Duration(nanos=1))
        result.result.parameters["text"] = LARGE
        await actor.send(results=[result], credits=1)
    await wait_until_async(lambda: len(actor.acknowledged) == TASKS, SECONDS)
    return names


async def read_to_the_end(call: Any) -> str:
    """The reason of the error that ends the stream."""
    try:
        async with asyncio.timeout(SECONDS):
            while await call.read() is not grpc.aio.EOF:
                continue
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).reason
    return "ended in peace"


@pytest.mark.parametrize("method", ["SubmitTaskStream", "WatchTasks"])
async def test_a_follower_that_does_not_read_is_bounded_and_may_come_back(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_watches, "MAX_BEHIND_BYTES", 2_000_000)
    async with (
        fleet() as (scheduler, client, actor),
        open_channel(scheduler.server.address) as channel,
    ):
        stub = Client(channel).stub
        if method == "WatchTasks":
            call = stub.WatchTasks(pb.WatchTasksRequest(submitter="me"), timeout=SECONDS)
            await call.initial_metadata()
        else:
            call = stub.SubmitTaskStream(timeout=SECONDS)
            await call.write(pb.SubmitTaskStreamRequest(follow="me"))
            await call.read()
        names = await run_large_tasks(client, actor)
        (watch,) = scheduler.shell._watchers._all
        assert (watch._ready, watch._bytes) == ([], 0), "the follower was not cut off"
        assert await read_to_the_end(call) == "WATCHER_TOO_SLOW"
        assert sorted(outcome.task_id for outcome in await client.outcomes(names)) == sorted(names)


async def test_an_actor_that_floods_and_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING_BYTES", 500_000)
    async with (
        fleet() as (scheduler, client, actor),
        open_channel(scheduler.server.address) as channel,
    ):
        stub: Any = FleetServiceStub(channel)
        call = stub.Connect()
        hello = fleet_pb.Hello(actor_id="flood", node_id="node", slots=1, kinds=["noop"], incarnation=1)
        await call.write(fleet_pb.ConnectRequest(hello=hello))
        # Each result is acknowledged by its lease, known or not.
        unknown = [fleet_pb.Lease(task_id="t" * 200, lease_id=number) for number in range(1, 101)]
        results = fleet_pb.ConnectRequest(results=[fleet_pb.TaskResult(lease=lease) for lease in unknown])

        async def flood() -> None:
            while True:
                await call.write(results)

        assert (await call.read()).HasField("welcome")
        flooding = asyncio.create_task(flood())
        await wait_until_async(lambda: len(scheduler.shell._actors.by_session) == 1, SECONDS)
        # A write after the end of the stream hides the server's reason.
        assert await read_to_the_end(call) in ("READER_TOO_SLOW", "STREAM_ENDED")
        await asyncio.wait({flooding}, timeout=SECONDS)
        assert isinstance(flooding.exception(), (grpc.aio.AioRpcError, asyncio.InvalidStateError))
        await client.submit(noop("t"))
        assert [assignment.lease.task_id for assignment in await actor.take()] == ["t"]
