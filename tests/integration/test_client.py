"""The controller with real schedulers and actors, as processes that it starts itself."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from parlmesh.client import ActorState, ClientConfig, OutcomeState, PARLController, Priority, TaskRequest
from parlmesh.client.sync import Controller
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput, NotFound
from parlmesh.testing import serve, wait_until, wait_until_async
from parlmesh.testing.fleet import FakeLearner, random_policy

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Controller]:
    """Four workers, shared by tests that do not disturb them."""
    with Controller() as controller:
        controller.initialize(4)
        yield controller


def children(parent: int | None = None) -> list[psutil.Process]:
    return psutil.Process(parent).children(recursive=True)


def service(processes: list[psutil.Process], name: str) -> psutil.Process:
    return next(process for process in processes if process.cmdline()[2].removeprefix("parlmesh.") == name)


def is_open(address: str) -> bool:
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_a_hundred_workers_take_fifteen_hundred_tasks_at_once_and_leave_nothing_behind() -> None:
    before = set(children())
    async with PARLController() as controller:
        assert await controller.initialize(100) == 100
        assert await controller.initialize(100) == 100
        started = set(children()) - before
        assert 2 <= len(started) <= 1 + (os.cpu_count() or 1)
        actors = await controller.list_actors()
        assert [actor.state for actor in actors] == [ActorState.READY] * 100
        outcomes = await controller.execute_parallel([TaskRequest("sleep", {"seconds": 0.02})] * 3000, limit=1500)
        assert len({outcome.task_id for outcome in outcomes}) == 3000
        assert all(outcome.ok for outcome in outcomes)
        statistics = await controller.get_statistics()
        assert statistics.completed_tasks == statistics.client.received_outcomes == 3000
        assert (statistics.queued_tasks, statistics.running_tasks, statistics.client.pending_tasks) == (0, 0, 0)
        address = controller.address
    assert not any(process.is_running() for process in started)
    assert not is_open(address)


async def test_an_exception_in_the_body_leaves_no_process() -> None:
    started: list[psutil.Process] = []

    async def body() -> None:
        before = set(children())
        async with PARLController() as controller:
            await controller.initialize(2)
            started.extend(set(children()) - before)
            raise RuntimeError("the body")

    with pytest.raises(RuntimeError, match="the body"):
        await body()
    assert len(started) == 2
    assert not any(process.is_running() for process in started)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_no_process_survives_a_program_that_is_stopped(end: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import asyncio
            import signal
            from parlmesh.client import PARLController, TaskRequest

            # Tests that a shell runs in the background are started with SIGINT ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)

            async def main():
                async with PARLController() as controller:
                    await controller.initialize(2)
                    print(controller.address, flush=True)
                    await controller.execute_parallel([TaskRequest("sleep", {"seconds": 60})])

            asyncio.run(main())
        """)
    )
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        started = children(process.pid)
        assert len(started) == 2
        process.send_signal(end)
        process.wait(60)
    wait_until(lambda: not any(child.is_running() for child in started), 60)
    assert not is_open(address)


def test_one_failing_task_leaves_the_others_intact(fleet: Controller) -> None:
    tasks = [TaskRequest("echo", {"n": n}) for n in range(200)]
    tasks[17] = TaskRequest("fail", {"message": "as asked"})
    tasks[99] = TaskRequest("no such kind")
    tasks[150] = TaskRequest("sleep", {"seconds": -1})
    outcomes = fleet.execute_parallel(tasks)
    bad = {outcome.index: outcome for outcome in outcomes if not outcome.ok}
    assert {index: outcome.state for index, outcome in bad.items()} == {
        17: OutcomeState.FAILED,
        99: OutcomeState.REFUSED,
        150: OutcomeState.FAILED,
    }
    assert str(bad[17].error) == "as asked"
    assert isinstance(bad[99].error, FailedPrecondition)
    assert isinstance(bad[150].error, InvalidInput)
    assert [outcome.unwrap()["n"] for outcome in outcomes if outcome.ok] == [
        n for n in range(200) if n not in (17, 99, 150)
    ]


def test_parameters_and_tensors_come_back_as_they_went(fleet: Controller) -> None:
    parameters = {"text": "ü", "list": [1, 2.5, None, True], "nested": {"a": {}}}
    tensors = {"x": np.arange(100_000, dtype=np.float32).reshape(1000, 100), "y": np.array(True)}
    (outcome,) = fleet.execute_parallel([TaskRequest("echo", parameters, tensors)])
    assert outcome.unwrap() == parameters
    assert {name: (array.dtype, array.tolist()) for name, array in outcome.tensors.items()} == {
        name: (array.dtype, array.tolist()) for name, array in tensors.items()
    }


def test_outcomes_can_be_taken_as_they_complete_and_in_order(fleet: Controller) -> None:
    waits = [0.4, 0.0, 0.0]
    completed = fleet.as_completed([TaskRequest("sleep", {"seconds": wait}) for wait in waits])
    assert [outcome.index for outcome in completed][-1] == 0
    mapped = fleet.map("sleep", ({"seconds": wait} for wait in waits))
    assert [outcome.unwrap()["seconds"] for outcome in mapped] == waits


def test_a_failed_parent_fails_its_children_with_the_reason(fleet: Controller) -> None:
    outcomes = fleet.execute_parallel(
        [
            TaskRequest("noop", dependencies=["parent-a"], task_id="child-a"),
            TaskRequest("noop", dependencies=["child-a"]),
            TaskRequest("fail", {"message": "no"}, task_id="parent-a"),
            TaskRequest("noop", dependencies=["parent-b"]),
            TaskRequest("noop", task_id="parent-b"),
            TaskRequest("noop", dependencies=["nobody"]),
            TaskRequest("noop", dependencies=["loop-b"], task_id="loop-a"),
            TaskRequest("noop", dependencies=["loop-a"], task_id="loop-b"),
        ]
    )
    assert [outcome.error.reason if outcome.error else "" for outcome in outcomes][:5] == [
        "DEPENDENCY_FAILED",
        "DEPENDENCY_FAILED",
        "HANDLER_ERROR",
        "",
        "",
    ]
    assert [outcome.state for outcome in outcomes][5:] == [OutcomeState.REFUSED] * 3


def test_a_result_comes_by_its_id_and_an_unknown_id_is_an_error(fleet: Controller) -> None:
    task_id = fleet.submit_task("echo", {"n": 1})
    assert fleet.result(task_id, timeout=30).unwrap() == {"n": 1}
    assert fleet.result(task_id, timeout=30).unwrap() == {"n": 1}
    with pytest.raises(NotFound):
        fleet.result("nothing of the kind")
    slow = fleet.submit_task("sleep", {"seconds": 60})
    with pytest.raises(DeadlineExceeded):
        fleet.result(slow, timeout=0.05)
    assert fleet.cancel([slow, task_id]) == [slow]
    assert fleet.result(slow, timeout=30).state is OutcomeState.CANCELLED


def test_tasks_can_be_explained_traced_and_their_workers_paused(fleet: Controller, tmp_path: Path) -> None:
    ids = [actor.actor_id for actor in fleet.list_actors()]
    paused = fleet.pause(ids)
    assert {actor.state for actor in paused} == {ActorState.PAUSED}
    task_id = fleet.submit_task("noop")
    assert "paused" in fleet.explain(task_id)
    assert fleet.get_statistics().queued_tasks == 1
    assert fleet.rebalance_load() == 0
    assert {actor.state for actor in fleet.resume(ids)} == {ActorState.READY}
    assert fleet.result(task_id, timeout=30).ok
    events = json.loads(fleet.save_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(task_id in json.dumps(event) for event in events)
    with pytest.raises(NotFound):
        fleet.pause(["nobody"])


async def test_another_controller_can_join_the_fleet(fleet: Controller) -> None:
    async with await PARLController.connect(fleet.address) as other:
        outcomes = await other.execute_parallel([TaskRequest("noop")] * 500)
        assert all(outcome.ok for outcome in outcomes)
        assert (await other.initialize(3)) == 4  # there is a fleet already


async def test_with_one_worker_the_urgent_run_first_and_equals_in_order() -> None:
    async with PARLController() as controller:
        await controller.initialize(1)
        blocker = await controller.submit_task("sleep", {"seconds": 1.0})
        await wait_until_async(lambda: _running(controller), 60)
        requests = [
            TaskRequest("sleep", {"seconds": 0}, priority=priority)
            for priority in (Priority.LOW, Priority.LOW, Priority.NORMAL, Priority.CRITICAL, Priority.CRITICAL)
        ]
        order = [outcome.index async for outcome in controller.as_completed(requests)]
        assert order == [3, 4, 2, 0, 1]
        assert (await controller.result(blocker)).ok


async def _running(controller: PARLController) -> bool:
    return (await controller.get_statistics()).running_tasks > 0


async def test_outcomes_still_arrive_after_the_scheduler_was_killed() -> None:
    async with PARLController(config=ClientConfig(reconnect_seconds=0.2)) as controller:
        before = set(children())
        await controller.initialize(2)
        processes = list(set(children()) - before)
        waiting = await controller.submit_task("sleep", {"seconds": 0.5})
        tasks = [TaskRequest("sleep", {"seconds": 0.01}) for _ in range(300)]
        call = asyncio.ensure_future(controller.execute_parallel(tasks, timeout=90))
        await wait_until_async(lambda: _running(controller), 60)
        service(processes, "scheduler").kill()
        outcomes = await call
        assert [outcome.index for outcome in outcomes if outcome.ok] == list(range(300))
        assert (await controller.result(waiting, timeout=90)).ok
        counts = (await controller.get_statistics()).client
        assert counts.reconnects >= 1
        assert counts.pending_tasks == 0


async def test_outcomes_still_arrive_after_an_actor_process_was_killed() -> None:
    async with PARLController() as controller:
        before = set(children())
        await controller.initialize(4, processes=2, scheduler={"leases": {"reconnect_seconds": 0.5}})
        processes = list(set(children()) - before)
        tasks = [TaskRequest("sleep", {"seconds": 0.05}) for _ in range(100)]
        call = asyncio.ensure_future(controller.execute_parallel(tasks, timeout=90))
        await wait_until_async(lambda: _running(controller), 60)
        service(processes, "actor").kill()
        outcomes = await call
        assert [outcome.error for outcome in outcomes if not outcome.ok] == []


async def test_update_policy_returns_when_the_acting_workers_act_with_the_newest_version() -> None:
    learner = FakeLearner()
    await learner.publish("run", 1, random_policy(1))
    async with serve(learner.services) as address, PARLController(learner=address) as controller:
        await controller.initialize(2)
        nobody = await controller.update_policy("run")
        assert (nobody.version, nobody.actors) == (1, 0)
        rollout = {
            "run_id": "run",
            "environment": {"id": "CartPole-v1"},
            "num_envs": 2,
            "trajectory_steps": 8,
            "fragments": 1,
            "seed": 1,
        }
        outcomes = await controller.execute_parallel([TaskRequest("rollout", rollout)] * 4)
        assert [outcome.error for outcome in outcomes] == [None] * 4
        await wait_until_async(lambda: _acting(controller), 60)
        await learner.publish("run", 2, random_policy(2))
        update = await controller.update_policy("run")
        assert (update.run_id, update.version) == ("run", 2)
        assert update.actors >= 1
        versions = {actor.policy_version for actor in await controller.list_actors()}
        assert versions <= {0, 2}


async def _acting(controller: PARLController) -> bool:
    return any(actor.policy_version for actor in await controller.list_actors())


def test_handlers_of_ones_own_run_on_the_local_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubling.py").write_text(
        textwrap.dedent("""
            class Double:
                kind = "double"
                runs_in = "thread"

                def run(self, parameters, tensors, context):
                    return {"n": 2 * parameters["n"]}
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Controller() as controller:
        controller.initialize(1, actor={"handlers": {"double": "doubling:Double"}})
        assert controller.execute_parallel([TaskRequest("double", {"n": 21})])[0].unwrap() == {"n": 42}


FAULTY = """
import gymnasium
import numpy as np

from parlmesh.plugins import Plugin


class Faulty:
    kind = "faulty"
    runs_in = "thread"

    def run(self, parameters, tensors, context):
        return {"cell": {}[parameters["cell"]]}


class Apart(Faulty):
    kind = "faulty_process"
    runs_in = "process"


class Inline(Faulty):
    kind = "faulty_inline"
    runs_in = "inline"


class Loop(Faulty):
    kind = "faulty_loop"
    runs_in = "loop"

    async def run(self, parameters, tensors, context):
        return super().run(parameters, tensors, context)


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        raise RuntimeError("the world ended")


plugin = Plugin(
    handlers={each.kind: each for each in (Faulty, Apart, Inline, Loop)}, environments={"Faulty-v0": World}
)
"""


async def test_the_traceback_of_a_users_code_comes_with_the_outcome_and_is_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "faulty.py"
    path.write_text(FAULTY)
    learner = FakeLearner()
    await learner.publish("run", 1, random_policy(1))
    rollout = {"run_id": "run", "environment": {"id": "Faulty-v0"}, "num_envs": 1, "trajectory_steps": 8}
    tasks = [TaskRequest(kind, {"cell": "A1"}) for kind in ("faulty", "faulty_process", "faulty_inline", "faulty_loop")]
    async with serve(learner.services) as address, PARLController(learner=address) as controller:
        await controller.initialize(1, actor={"plugins": [f"{path}:plugin"]})
        *outcomes, world = await controller.execute_parallel([*tasks, TaskRequest("rollout", rollout)])
    for outcome in outcomes:
        assert (outcome.state, str(outcome.error), outcome.attempts) == (OutcomeState.FAILED, "KeyError: 'A1'", 1)
        assert f'File "{path}", line 13, in run: return {{"cell": {{}}[parameters["cell"]]}}' in outcome.traceback
        with pytest.raises(FleetError) as raised:
            outcome.unwrap()
        assert str(path) in "".join(traceback.format_exception(raised.value))
    assert (str(world.error), world.attempts) == ("RuntimeError: the world ended", 1)
    assert f'File "{path}", line 43, in step: raise RuntimeError("the world ended")' in world.traceback


def test_a_fleet_that_cannot_start_says_why_and_is_gone() -> None:
    before = set(children())
    with Controller() as controller:
        with pytest.raises(FailedPrecondition, match=r"local-0 refused its configuration.*slots"):
            controller.initialize(1, actor={"slots": 0})
        with pytest.raises(FailedPrecondition, match=r"scheduler refused its configuration.*store"):
            controller.initialize(1, scheduler={"store": {"kind": "paper"}})
        assert set(children()) == before
        assert controller.initialize(1) == 1  # and can be tried again
