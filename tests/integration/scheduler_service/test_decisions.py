"""A failure between a decision and its record: nobody is told, nothing more is decided, and a restart loses nothing."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from parlmesh.errors import FleetError
from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from scheduler import failpoints, metrics
from scheduler.build import Scheduler
from scheduler.config import SchedulerConfig
from scheduler.decision_guard import DecisionFailed
from scheduler.simulation.journal_replay import store_differences
from scheduler.store import SqliteStore
from tests.integration.scheduler_service.conftest import SECONDS, Client, RemoteActor, noop

# Steps at which the core is ahead of the journal when they fail.
BEFORE_THE_RECORD = (failpoints.AFTER_DECISION, failpoints.BEFORE_ENCODE, failpoints.AFTER_ENCODE)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


class Stage:
    """A scheduler on a file with a queued, a running and a finished task."""

    def __init__(self, scheduler: Scheduler, client: Client, actor: RemoteActor, ticking: asyncio.Task[None]) -> None:
        self.scheduler, self.client, self.actor, self.ticking = scheduler, client, actor, ticking
        self.running: Any = None


@asynccontextmanager
async def stage(path: Path) -> AsyncIterator[Stage]:
    config = SchedulerConfig.model_validate(
        {
            "listen": {"port": 0, "drain_seconds": 0.2},
            "metrics": {"port": None},
            "store": {"path": path},
            "dispatch": {"tick_seconds": 0.2},
        }
    )
    scheduler = Scheduler(config)
    await scheduler.start()
    ticking = asyncio.create_task(scheduler.shell.run(asyncio.Event()))
    async with open_channel(f"127.0.0.1:{scheduler.server.port}") as channel:
        made = Stage(scheduler, Client(channel), RemoteActor(channel), ticking)
        await made.actor.connect()
        await made.client.submit(noop("done"), noop("running"), noop("queued"))
        await made.actor.answer(*await made.actor.take())
        (made.running,) = await made.actor.take()
        await wait_until_async(lambda: "done" in made.actor.acknowledged, SECONDS)
        try:
            yield made
        finally:
            await made.actor.close()
            ticking.cancel()
            await asyncio.wait([ticking])
            await scheduler.stop()


async def submit(made: Stage) -> None:
    await made.client.submit(noop("new"))


async def cancel(made: Stage) -> None:
    await made.client.call("CancelTasks", pb.CancelTasksRequest(task_ids=["queued"]))


async def pause(made: Stage) -> None:
    await made.client.call("UpdateActors", pb.UpdateActorsRequest(actor_ids=["a"], command=pb.ACTOR_COMMAND_PAUSE))


async def result(made: Stage) -> None:
    await made.actor.answer(made.running)
    await wait_until_async(lambda: "running" in made.actor.acknowledged or made.actor.error, SECONDS)
    raise made.actor.error or AssertionError("the result was acknowledged")


async def hello(made: Stage) -> None:
    await RemoteActor(made.client.channel).connect("b")


EVENTS = (submit, cancel, pause, result, hello)


@pytest.mark.parametrize(
    ("place", "event", "fault"),
    [
        pytest.param(place, event, ("memory", "defect", "error")[number % 3], id=f"{place}-{event.__name__}")
        for number, (place, event) in enumerate(product(BEFORE_THE_RECORD, EVENTS))
    ],
)
async def test_an_error_before_the_record_stops_the_scheduler_and_a_restart_knows_all_that_was_announced(
    tmp_path: Path, place: str, event: Callable[[Stage], Awaitable[None]], fault: str
) -> None:
    path = tmp_path / "s.sqlite"
    async with stage(path) as made:
        before = {task_id: task.state.name for task_id, task in made.scheduler.core.life.tasks.items()}
        assert before == {"done": "SUCCEEDED", "running": "RUNNING", "queued": "QUEUED"}
        failpoints.arm(f"{place}={fault}")
        with pytest.raises((FleetError, grpc.aio.AioRpcError)):
            await asyncio.wait_for(event(made), SECONDS)
        assert failpoints.passed[place] == 1
        failpoints.disarm()
        for refused in (made.client.submit(noop("later")), made.client.get("queued")):
            with pytest.raises(FleetError) as caught:
                await refused
            assert caught.value.reason == "STOPPING"
        with pytest.raises(DecisionFailed):
            await asyncio.wait_for(made.ticking, SECONDS)
    async with restarted(path) as again:
        tasks = again.core.life.tasks
        assert {task_id: task.state.name for task_id, task in tasks.items()} == before
        assert set(again.core.life.fleet.actors) == {"a"}


@pytest.mark.parametrize("place", [failpoints.BEFORE_COMMIT, failpoints.AFTER_COMMIT])
async def test_a_committer_that_dies_takes_the_scheduler_with_it(tmp_path: Path, place: str) -> None:
    path = tmp_path / "s.sqlite"
    async with stage(path) as made:
        failpoints.arm(f"{place}=defect")
        submitting = asyncio.ensure_future(made.client.submit(noop("new")))
        with pytest.raises(DecisionFailed):
            await asyncio.wait_for(made.ticking, SECONDS)
        assert not submitting.done()
        assert not made.scheduler.shell.healthy
        submitting.cancel()
    async with restarted(path) as again:
        assert {"done", "running", "queued"} <= set(again.core.life.tasks)


async def test_a_store_that_fails_once_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with stage(path) as made:
        failpoints.arm(f"{failpoints.BEFORE_COMMIT}=error")
        assert await made.client.submit(noop("new")) == ["new"]
        assert failpoints.passed[failpoints.BEFORE_COMMIT] >= 2
        core = made.scheduler.core
    assert store_differences(core, path, made.scheduler.shell.now()) == []


async def test_a_store_that_vanishes_is_noticed_and_nothing_more_is_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with stage(path) as made:
        path.rename(tmp_path / "away")
        await wait_until_async(lambda: not made.scheduler.shell.healthy, SECONDS)
        with pytest.raises(FleetError) as caught:
            await made.client.submit(noop("new"))
        assert caught.value.reason == "STORE_FAILING"
        (tmp_path / "away").rename(path)
        await wait_until_async(lambda: made.scheduler.shell.healthy, SECONDS)
        assert await made.client.submit(noop("new")) == ["new"]


async def test_an_unreadable_record_is_lost_alone_and_clients_learn_of_a_new_memory(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with stage(path) as made:
        whole = made.scheduler._store.identity
    store = SqliteStore(path)
    list(store.open(1.0).batches)
    # A FINISHED record of a task that was never submitted.
    store.append(struct.pack("<BIQ", 4, 0, 999), 1)
    store.close()
    unreadable = metrics.UNREADABLE_RECORDS._value.get()
    async with restarted(path) as again:
        assert set(again.core.life.tasks) == {"done", "running", "queued"}
        assert again._store.identity != whole
    assert metrics.UNREADABLE_RECORDS._value.get() == unreadable + 1


async def test_one_invalid_request_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with stage(path) as made:
        odd = noop("odd")
        odd.placement.node_id = "n" * 70_000
        with pytest.raises(FleetError) as caught:
            await made.client.submit(noop("innocent"), odd)
        assert (caught.value.reason, caught.value.metadata["field"]) == ("NAME_TOO_LONG", "node_id")
        assert await made.client.submit(noop("innocent")) == ["innocent"]
        core = made.scheduler.core
    assert store_differences(core, path, made.scheduler.shell.now()) == []


@asynccontextmanager
async def restarted(path: Path) -> AsyncIterator[Scheduler]:
    config = {"listen": {"port": 0}, "metrics": {"port": None}, "store": {"path": path}}
    scheduler = Scheduler(SchedulerConfig.model_validate(config))
    await scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.stop()
