"""The actor as a real process, against fake services."""

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from actor.config import METRICS_PORT
from actor.handlers.builtin import HANDLERS
from parlmesh.errors import FailedPrecondition, Unavailable
from parlmesh.testing import Process, serve, wait_until_async
from parlmesh.testing.fleet import FakeLearner, FakeScheduler, random_policy
from parlmesh.v1.fleet_service_pb2 import ConnectResponse
from parlmesh.v1.scheduler_service_pb2 import ActorCommand
from parlmesh.wire import payload_from_proto

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[2]

_DEADLY = """
import os, signal

class Deadly:
    kind = "deadly"
    runs_in = "process"
    def run(self, parameters, tensors, context):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def learner() -> FakeLearner:
    return FakeLearner()


@pytest.fixture
async def address(scheduler: FakeScheduler, learner: FakeLearner) -> AsyncIterator[str]:
    async with serve([scheduler.service, *learner.services]) as address:
        yield address


async def test_a_second_actor_of_a_host_takes_the_next_free_port_for_its_metrics(
    scheduler: FakeScheduler, address: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _actor(address, f"metrics.port={port}") as chosen:
            await wait_until_async(lambda: not chosen.running, 60)
            chosen.assert_exits(3)
    try:
        held = socket.create_server(("127.0.0.1", METRICS_PORT))
    except OSError:
        held = None  # taken already, which is as good
    try:
        with _actor(address, f"metrics.port={METRICS_PORT}") as process:
            await scheduler.welcomed()
            assert process.wait_for("serving")["metrics_port"] > METRICS_PORT
            assert process.events("metrics_port_taken")
    finally:
        if held is not None:
            held.close()


_HANGING = """
import re
import time

class Sleeps:
    kind, runs_in = "sleeps", "thread"
    def run(self, parameters, tensors, context):
        time.sleep(600)

class SleepsApart(Sleeps):
    kind, runs_in = "sleeps_apart", "process"

class Holds:
    kind, runs_in = "holds", "thread"
    def run(self, parameters, tensors, context):
        re.match(r"(a+)+$", "a" * 64 + "b")  # never gives the interpreter away
"""


@pytest.mark.parametrize("kind", ["sleeps", "sleeps_apart"])
async def test_hanging_code_frees_its_slots_at_the_run_timeout(
    kind: str, scheduler: FakeScheduler, address: str, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(_HANGING)
    handlers = "handlers={sleeps: hanging:Sleeps, sleeps_apart: hanging:SleepsApart}"
    settings = ("slots=2", handlers, "limits.stop_seconds=0.2", "limits.prefetch=0")
    with _actor(address, *settings, cwd=tmp_path) as process:
        stream = await scheduler.welcomed()
        hung = [scheduler.assignment(kind, run_seconds=0.5) for _ in range(2)]
        stream.send(ConnectResponse(assignments=hung))
        for assignment in hung:
            assert (await stream.result(assignment.lease.lease_id)).failure.reason == "DEADLINE_EXCEEDED"
        after = [scheduler.assignment("sleep", {"seconds": 0.0}) for _ in range(2)]
        stream.send(ConnectResponse(assignments=after))
        for assignment in after:
            assert (await stream.result(assignment.lease.lease_id)).HasField("result")
        # A process that was stopped while it started ends by itself when it finds its pipe closed.
        await wait_until_async(lambda: not psutil.Process(process.pid).children(), 60)


async def test_an_actor_whose_every_thread_is_held_ends_itself_and_says_where(
    scheduler: FakeScheduler, address: str, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(_HANGING)
    settings = ("handlers={holds: hanging:Holds}", "limits.stall_seconds=1")
    with _actor(address, *settings, cwd=tmp_path) as process:
        stream = await scheduler.welcomed()
        stream.send(ConnectResponse(assignments=[scheduler.assignment("holds")]))
        await wait_until_async(lambda: not process.running, 60)
        process.assert_exits(1)
        assert any("hanging.py" in line and "in run" in line for line in process.lines)


async def test_an_actor_that_leaves_does_not_wait_long_for_a_scheduler_that_is_away(tmp_path: Path) -> None:
    scheduler, learner = FakeScheduler(), FakeLearner()
    async with serve([scheduler.service, *learner.services]) as address:
        with _actor(address, "limits.drain_seconds=3600") as process:
            stream = await scheduler.welcomed()
            stream.send(ConnectResponse(assignments=[scheduler.assignment("sleep", {"seconds": 600})]))
            await stream.until(lambda: bool(stream.heartbeats and stream.heartbeats[-1].leases))
            stream.end(Unavailable("away"))
            process.terminate()
            (await scheduler.stream()).end(Unavailable("away"))
            await wait_until_async(lambda: not process.running, 60)
            process.assert_exits(0)


def test_a_profile_that_cannot_be_written_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    with _actor("127.0.0.1:1", f"profile={tmp_path}/no/such/folder/profile.json") as process:
        process.assert_exits(2)
        assert process.lines[-1].startswith("error: profile cannot be written to")


@contextmanager
def _actor(address: str, *settings: str, cwd: Path = _ROOT, **environment: str) -> Iterator[Process]:
    given = [f"scheduler={address}", f"learner={address}", "metrics.port=0", "node_id=node", "actor_id=a", *settings]
    arguments = [part for setting in given for part in ("--set", setting)]
    path = os.pathsep.join([str(_ROOT), str(cwd)])
    with Process("actor", *arguments, cwd=cwd, environment={"PYTHONPATH": path, **environment}) as process:
        yield process


async def _exit_code(process: Process) -> int:
    await wait_until_async(lambda: not process.running, 60.0)
    return process.wait()


async def test_an_actor_process_connects_works_and_leaves_with_exit_code_0(
    address: str, scheduler: FakeScheduler
) -> None:
    with _actor(address, "labels.zone=b") as process:
        stream = await scheduler.welcomed()
        assert (stream.hello.node_id, stream.hello.actor_id, dict(stream.hello.labels)) == ("node", "a", {"zone": "b"})
        assert stream.hello.incarnation > 1_600_000_000_000_000_000
        assert set(stream.hello.kinds) == HANDLERS.keys()
        quick, slow = scheduler.assignment("echo", {"x": 1}), scheduler.assignment("sleep", {"seconds": 0.5})
        stream.send(ConnectResponse(assignments=[quick, slow]))
        assert payload_from_proto((await stream.result(quick.lease.lease_id)).result)[0] == {"x": 1}
        process.terminate()
        await stream.until(lambda: stream.leaving)
        assert (await stream.result(slow.lease.lease_id)).HasField("result")
        stream.acknowledge(stream.results.values())
        assert await _exit_code(process) == 0
        assert [event["event"] for event in process.events()] == ["serving", "connected", "leaving", "left", "stopped"]


async def test_a_task_that_outlasts_the_grace_does_not_keep_the_process(address: str, scheduler: FakeScheduler) -> None:
    with _actor(address, "limits.drain_seconds=0.2") as process:
        stream = await scheduler.welcomed()
        stream.send(ConnectResponse(assignments=[scheduler.assignment("sleep", {"seconds": 600})]))
        await stream.until(lambda: any(beat.leases for beat in stream.heartbeats))
        process.terminate()
        assert await _exit_code(process) == 0
        assert process.events("drain_cut_short")[0]["held"] == 1


async def test_a_drained_process_leaves_with_exit_code_0(address: str, scheduler: FakeScheduler) -> None:
    with _actor(address, "actors=2") as process:
        for _ in range(2):
            stream = await scheduler.welcomed()
            assert process.running
            stream.send(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_DRAIN))
            await stream.until(lambda stream=stream: stream.leaving)  # type: ignore[misc]
        assert await _exit_code(process) == 0


async def test_a_process_may_host_many_actors_each_with_its_stream(address: str, scheduler: FakeScheduler) -> None:
    with _actor(address, "actors=20", "kinds=[noop]") as process:
        streams = [await scheduler.welcomed() for _ in range(20)]
        assert {stream.hello.actor_id for stream in streams} == {f"a-{index}" for index in range(20)}
        for stream in streams:
            assignment = scheduler.assignment("noop")
            stream.send(ConnectResponse(assignments=[assignment]))
            assert (await stream.result(assignment.lease.lease_id)).HasField("result")
        process.terminate()
        for stream in streams:
            stream.acknowledge(stream.results.values())
        assert await _exit_code(process) == 0


async def test_a_rollout_goes_from_the_scheduler_over_the_actor_to_the_learner(
    address: str, scheduler: FakeScheduler, learner: FakeLearner
) -> None:
    await learner.publish("run-1", 3, random_policy(0))
    with _actor(address) as process:
        stream = await scheduler.welcomed()
        rollout = scheduler.assignment(
            "rollout",
            {
                "run_id": "run-1",
                "environment": {"id": "CartPole-v1"},
                "num_envs": 8,
                "trajectory_steps": 64,
                "fragments": 2,
                "seed": 1,
                "min_policy_version": 3,
            },
        )
        stream.send(ConnectResponse(assignments=[rollout]))
        result, _ = payload_from_proto((await stream.result(rollout.lease.lease_id)).result)
        assert (result["policy_version"], result["accepted"], result["refused"]) == (3, 2, {})
        assert [trajectory.sequence for trajectory in learner.trajectories] == [1, 2]
        await stream.until(lambda: stream.heartbeats[-1].policy_version == 3)
        page = _metrics(process)
        assert f"parlmesh_actor_environment_steps_total {float(result['steps'])}" in page
        assert 'parlmesh_actor_tasks_total{kind="rollout",outcome="succeeded"} 1.0' in page
        assert 'parlmesh_actor_uploads_total{result="accepted"} 2.0' in page
        assert "parlmesh_actor_policy_version 3.0" in page


async def test_work_goes_on_while_the_stream_is_broken(address: str, scheduler: FakeScheduler) -> None:
    with _actor(address):
        first = await scheduler.welcomed()
        assignment = scheduler.assignment("sleep", {"seconds": 0.5})
        first.send(ConnectResponse(assignments=[assignment]))
        await first.until(lambda: any(beat.leases for beat in first.heartbeats))
        first.end(Unavailable("the scheduler is restarted"))
        second = await scheduler.welcomed()
        assert second.hello.leases == [assignment.lease]
        assert (await second.result(assignment.lease.lease_id)).HasField("result")


async def test_an_operators_handler_that_dies_affects_nobody_else(
    address: str, scheduler: FakeScheduler, tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(_DEADLY)
    with _actor(address, "handlers.deadly=deadly:Deadly", "slots=2", cwd=tmp_path) as process:
        stream = await scheduler.welcomed()
        other, deadly = scheduler.assignment("sleep", {"seconds": 0.5}), scheduler.assignment("deadly")
        stream.send(ConnectResponse(assignments=[other, deadly]))
        failure = (await stream.result(deadly.lease.lease_id)).failure
        assert (failure.reason, failure.retryable) == ("ACTOR_LOST", True)
        assert failure.message == "the process of handler deadly was killed by SIGKILL"
        assert (await stream.result(other.lease.lease_id)).HasField("result")
        assert process.running


async def test_a_replaced_actor_ends_with_one_sentence(address: str, scheduler: FakeScheduler) -> None:
    with _actor(address) as process:
        stream = await scheduler.stream()
        stream.end(FailedPrecondition('actor "a" has incarnation 9 already', reason="OLD_INCARNATION"))
        assert await _exit_code(process) == 1
        assert process.lines[-1] == 'error: actor "a" has incarnation 9 already'


def _metrics(process: Process) -> str:
    port = process.wait_for("serving")["metrics_port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5.0) as response:
        text: str = response.read().decode()
        return text


def _python(code: str) -> str:
    command: Sequence[str] = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_actor_never_imports_torch() -> None:
    assert _python("import sys, actor.serve, actor.handlers.rollout; print('torch' in sys.modules)") == "False\n"
