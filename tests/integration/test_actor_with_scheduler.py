"""Real actor processes under a real scheduler process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parlmesh.rpc import open_channel
from parlmesh.testing import Process, free_port, wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.task_pb2 import Outcome, TaskSpec, TaskState
from parlmesh.wire import payload_from_proto, payload_to_proto

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[2]
_SECONDS = 60.0


class Fleet:
    """A scheduler on one port, and a client of it."""

    def __init__(self, port: int, store: Path) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._store = store
        self.stub: Any = None

    @contextmanager
    def scheduler(self, *settings: str) -> Iterator[Process]:
        given = (f"listen.port={self.port}", "store.kind=sqlite", f"store.path={self._store}", *settings)
        with self._process("scheduler", *given) as process:
            process.wait_for("server_started")
            yield process

    @contextmanager
    def actor(self, actor_id: str, *settings: str) -> Iterator[Process]:
        given = (f"scheduler={self.address}", "node_id=node", f"actor_id={actor_id}", *settings)
        with self._process("actor", *given) as process:
            process.wait_for("connected")
            yield process

    async def submit(self, *tasks: TaskSpec) -> list[str]:
        answer = await self.stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=_SECONDS)
        return list(answer.task_ids)

    async def outcomes(self, task_ids: list[str]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        async for response in self.stub.WatchTasks(pb.WatchTasksRequest(task_ids=task_ids), timeout=_SECONDS):
            found.update({outcome.task_id: outcome for outcome in response.outcomes})
        return found

    async def running(self, task_id: str) -> bool:
        answer = await self.stub.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=_SECONDS)
        state: int = answer.task.state
        return state == TaskState.TASK_STATE_RUNNING

    @contextmanager
    def _process(self, module: str, *settings: str) -> Iterator[Process]:
        arguments = [part for setting in ("metrics.port=null", *settings) for part in ("--set", setting)]
        with Process(module, *arguments, cwd=_ROOT) as process:
            yield process


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(free_port(), tmp_path / "scheduler.sqlite")
    async with open_channel(fleet.address) as channel:
        fleet.stub = SchedulerServiceStub(channel)
        yield fleet


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A scheduler and one actor, shared by tests that do not disturb them."""
    fleet = Fleet(free_port(), tmp_path_factory.mktemp("standing") / "scheduler.sqlite")
    with fleet.scheduler(), fleet.actor("a"):
        yield fleet


@pytest.fixture
async def pair(standing: Fleet) -> AsyncIterator[Fleet]:
    """The shared fleet, with a client on this test's loop."""
    async with open_channel(standing.address) as channel:
        standing.stub = SchedulerServiceStub(channel)
        yield standing


def _task(kind: str, **parameters: Any) -> TaskSpec:
    return TaskSpec(kind=kind, payload=payload_to_proto(parameters) if parameters else None)


async def test_every_task_ends_once_on_one_of_the_actors(fleet: Fleet) -> None:
    with fleet.scheduler(), fleet.actor("a"), fleet.actor("b", "actors=2"):
        task_ids = await fleet.submit(*[_task("noop") for _ in range(2000)])
        outcomes = await fleet.outcomes(task_ids)
        assert {outcome.state for outcome in outcomes.values()} == {TaskState.TASK_STATE_SUCCEEDED}
        assert outcomes.keys() == set(task_ids)
        assert {outcome.actor_id for outcome in outcomes.values()} == {"a", "b-0", "b-1"}


async def test_results_and_failures_reach_the_client(pair: Fleet) -> None:
    task_ids = await pair.submit(
        _task("echo", text="hello"), _task("fail", message="as asked"), _task("sleep", seconds=-1)
    )
    outcomes = await pair.outcomes(task_ids)
    echo, fail, sleep = (outcomes[task_id] for task_id in task_ids)
    assert payload_from_proto(echo.result)[0] == {"text": "hello"}
    assert (fail.failure.reason, fail.failure.message, fail.attempts) == ("HANDLER_ERROR", "as asked", 1)
    assert (sleep.failure.reason, sleep.attempts) == ("INVALID_PARAMETERS", 1)


async def test_a_cancelled_task_frees_its_slot(pair: Fleet) -> None:
    (task_id,) = await pair.submit(_task("sleep", seconds=600))
    await wait_until_async(lambda: pair.running(task_id), _SECONDS)
    await pair.stub.CancelTasks(pb.CancelTasksRequest(task_ids=[task_id]), timeout=_SECONDS)
    (next_id,) = await pair.submit(_task("sleep", seconds=0))
    outcomes = await pair.outcomes([task_id, next_id])
    assert outcomes[task_id].state == TaskState.TASK_STATE_CANCELLED
    assert outcomes[next_id].state == TaskState.TASK_STATE_SUCCEEDED


async def test_a_task_past_its_run_timeout_is_stopped_by_the_actor(pair: Fleet) -> None:
    task = _task("sleep", seconds=600)
    task.run_timeout.FromMilliseconds(100)
    task.max_attempts = 1
    (task_id,) = await pair.submit(task)
    assert (await pair.outcomes([task_id]))[task_id].failure.reason == "DEADLINE_EXCEEDED"


async def test_a_task_goes_on_while_the_scheduler_is_killed_and_started_again(fleet: Fleet) -> None:
    with fleet.scheduler() as first, fleet.actor("a") as actor:
        (task_id,) = await fleet.submit(_task("sleep", seconds=2))
        await wait_until_async(lambda: fleet.running(task_id), _SECONDS)
        first.kill()
        actor.wait_for("disconnected")
        with fleet.scheduler():
            await wait_until_async(lambda: len(actor.events("connected")) == 2, _SECONDS)
            outcome = (await fleet.outcomes([task_id]))[task_id]
            assert (outcome.state, outcome.attempts) == (TaskState.TASK_STATE_SUCCEEDED, 1)


async def test_the_task_of_a_killed_actor_is_given_to_another(fleet: Fleet) -> None:
    with fleet.scheduler("leases.reconnect_seconds=0.5"), fleet.actor("a") as first:
        (task_id,) = await fleet.submit(_task("sleep", seconds=1))
        await wait_until_async(lambda: fleet.running(task_id), _SECONDS)
        first.kill()
        with fleet.actor("b"):
            outcome = (await fleet.outcomes([task_id]))[task_id]
            assert (outcome.state, outcome.actor_id) == (TaskState.TASK_STATE_SUCCEEDED, "b")


async def test_an_actor_that_is_drained_ends_its_task_and_leaves(fleet: Fleet) -> None:
    with fleet.scheduler(), fleet.actor("a") as actor:
        (task_id,) = await fleet.submit(_task("sleep", seconds=0.5))
        await wait_until_async(lambda: fleet.running(task_id), _SECONDS)
        request = pb.UpdateActorsRequest(actor_ids=["a"], command=pb.ActorCommand.ACTOR_COMMAND_DRAIN)
        await fleet.stub.UpdateActors(request, timeout=_SECONDS)
        assert (await fleet.outcomes([task_id]))[task_id].state == TaskState.TASK_STATE_SUCCEEDED
        assert await asyncio.to_thread(actor.wait, _SECONDS) == 0


async def test_a_reset_actor_starts_its_task_afresh(pair: Fleet) -> None:
    (task_id,) = await pair.submit(_task("sleep", seconds=0.5))
    await wait_until_async(lambda: pair.running(task_id), _SECONDS)
    request = pb.UpdateActorsRequest(actor_ids=["a"], command=pb.ActorCommand.ACTOR_COMMAND_RESET)
    await pair.stub.UpdateActors(request, timeout=_SECONDS)
    assert (await pair.outcomes([task_id]))[task_id].state == TaskState.TASK_STATE_SUCCEEDED


async def test_the_older_of_two_starts_of_one_actor_gives_up(fleet: Fleet) -> None:
    with fleet.scheduler(), fleet.actor("a") as first, fleet.actor("a"):
        assert await asyncio.to_thread(first.wait, _SECONDS) == 1
        assert first.lines[-1].startswith('error: actor "a" has incarnation')
