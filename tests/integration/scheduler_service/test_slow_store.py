"""Messages to actors while the disk is slow: nothing overtakes a message that waits for its commit."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from scheduler.build import Scheduler
from tests.integration.scheduler_service.conftest import SECONDS, Client, RemoteActor, noop, scheduler_of

ONCE = task_pb2.Failure(reason="HANDLER_ERROR", message="once", retryable=True)


class Disk:
    """Lets appends through only while it is open."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Event()
        append = scheduler._store.append

        def append_when_open(batch: bytes, records: int) -> None:
            if not self.open.is_set():
                self.waiting.set()
                assert self.open.wait(SECONDS)
            append(batch, records)

        scheduler._store.append = append_when_open  # type: ignore[method-assign]


@asynccontextmanager
async def slow_scheduler(folder: Path, **settings: Any) -> AsyncIterator[tuple[Scheduler, Disk, Client, RemoteActor]]:
    settings |= {"store": {"kind": "sqlite", "path": folder / "s.sqlite"}, "retries": {"first_delay_seconds": 0.0}}
    async with scheduler_of(**settings) as scheduler, open_channel(scheduler.server.address) as channel:
        disk, actor = Disk(scheduler), RemoteActor(channel)
        await actor.connect()
        try:
            yield scheduler, disk, Client(channel), actor
        finally:
            disk.open.set()
            await actor.close()


async def test_a_cancel_never_overtakes_a_repeated_assignment(tmp_path: Path) -> None:
    async with slow_scheduler(tmp_path) as (scheduler, disk, client, actor):
        await client.submit(noop("t"))
        (first,) = await actor.take()
        disk.open.clear()
        await actor.send(results=[fleet_pb.TaskResult(lease=first.lease, failure=ONCE)], credits=1)
        await wait_until_async(lambda: disk.waiting.is_set(), SECONDS)
        # Decided, but not yet durable.
        await wait_until_async(lambda: scheduler.core.task("t").attempts == 2, SECONDS)
        cancelling = asyncio.create_task(client.call("CancelTasks", pb.CancelTasksRequest(task_ids=["t"])))
        await wait_until_async(lambda: actor.revoked == ["t"], SECONDS)
        assert actor.held == [], "the repeated assignment was sent before it was durable"
        disk.open.set()
        assert list((await cancelling).cancelled_task_ids) == ["t"]
        # The credit of the assignment that was never sent is still good.
        await client.submit(noop("next"))
        assert [assignment.lease.task_id for assignment in await actor.take()] == ["next"]


async def test_a_lease_whose_commit_takes_longer_than_leases_last_is_sent_whole(tmp_path: Path) -> None:
    leases = {"heartbeat_seconds": 0.5, "duration_seconds": 2.0}
    async with slow_scheduler(tmp_path, leases=leases) as (scheduler, disk, client, actor):
        await client.submit(noop("t"))
        (first,) = await actor.take()
        disk.open.clear()
        await actor.send(results=[fleet_pb.TaskResult(lease=first.lease, failure=ONCE)], credits=1)
        await wait_until_async(lambda: scheduler.core.task("t").attempts == 2, SECONDS)
        waiting, enough = scheduler.core.task("t").lease, scheduler.shell.now() + 1.25 * leases["duration_seconds"]
        # The actor is connected and names no lease: it has not been told of one.
        while scheduler.shell.now() < enough:
            await actor.send(heartbeat=fleet_pb.Heartbeat())
            await asyncio.sleep(0.1)
        assert disk.waiting.is_set()
        assert (scheduler.core.task("t").lease, scheduler.core.task("t").losses) == (waiting, 0)
        disk.open.set()
        (second,) = await actor.take()
        assert second.lease.lease_id == waiting.lease_id
