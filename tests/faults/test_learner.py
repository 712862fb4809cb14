"""A learner that is killed while a checkpoint is being written."""

import asyncio
from pathlib import Path

import grpc
import pytest

from parlmesh.testing import Process, free_port, wait_until
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from tests.faults.test_scheduler import healths_while
from tools.faults import shim as shims
from tools.faults.shim import Shim

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not shims.available(), reason="there is no gcc to compile the shim with"),
]

SECONDS = 60.0
ROOT = Path(__file__).parents[2]


class SerialLearner:
    """Collects and trains in one process, with a checkpoint after every version."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.shim = Shim("learner", self.run_dir, folder)
        self.port = free_port()

    def start(self) -> Process:
        settings = {
            "mode": "serial",
            "listen.port": self.port,
            "metrics.port": "null",
            "run_dir": self.run_dir,
            "training.num_envs": 4,
            "training.trajectory_steps": 16,
            "training.hidden": "[8]",
            "training.goal_return": "null",
            "training.step_budget": 1_000_000_000,
            "training.evaluation_interval_steps": 1_000_000_000,
            "training.checkpoint_interval_versions": 1,
        }
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        process = Process("learner", *arguments, cwd=ROOT, environment=self.shim.environment)
        process.wait_for("serving", SECONDS)
        return process

    def version(self) -> int:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            stub = TrainingServiceStub(channel)
            answer = stub.GetTraining(pb.GetTrainingRequest(), timeout=SECONDS, wait_for_ready=True)
        return int(answer.training.progress.policy_version)

    def checkpoints(self) -> set[str]:
        return {path.name for path in (self.run_dir / "checkpoints").glob("v*")}

    def partial(self) -> set[str]:
        return {path.name for path in (self.run_dir / "checkpoints").glob(".partial*")}


def kill_within_a_checkpoint(learner: SerialLearner, newest: int) -> int:
    """Returns the newest version seen; `newest` is from the previous lifetime."""
    with learner.start() as process:
        wait_until(lambda: learner.version() > newest and learner.checkpoints(), SECONDS)
        before = learner.shim.seen("slow_fsyncs")
        # The disk is so slow that the kill hits the writing.
        learner.shim.set(fsync_delay_ms=1000)
        wait_until(lambda: learner.shim.seen("slow_fsyncs") > before and learner.partial(), SECONDS)
        seen = learner.version()
        process.kill()
        learner.shim.heal()
    assert learner.partial(), "the kill came while a checkpoint was being written"
    assert learner.checkpoints(), "those before are there"
    return seen


def test_a_learner_killed_while_it_writes_a_checkpoint_keeps_the_previous_one(tmp_path: Path) -> None:
    learner = SerialLearner(tmp_path)
    newest = 0
    for _ in range(2):
        newest = kill_within_a_checkpoint(learner, newest)
    with learner.start() as process:
        assert process.wait_for("run_resumed", SECONDS)["steps"] > 0
        assert not process.events("checkpoint_damaged")
        assert learner.version() >= newest, "versions never go back"
        wait_until(lambda: learner.version() > newest, SECONDS)


async def test_a_learner_told_to_stop_reports_it_first_and_resumes_where_it_was(tmp_path: Path) -> None:
    learner = SerialLearner(tmp_path)

    async def leave(process: Process) -> int:
        process.terminate()
        return await asyncio.to_thread(process.wait, SECONDS)

    with learner.start() as process:
        await asyncio.to_thread(wait_until, lambda: learner.version() > 5, SECONDS)
        assert await healths_while(leave(process), f"127.0.0.1:{learner.port}") == [True, False]
    newest = max(learner.checkpoints())
    with learner.start() as process:
        resumed = process.wait_for("run_resumed", SECONDS)
        assert resumed["checkpoint_version"] == int(newest[1:])
        assert resumed["steps"] > 0


@pytest.mark.slow
def test_a_learner_that_starts_on_a_full_disk_waits_and_trains_when_there_is_room(tmp_path: Path) -> None:
    learner = SerialLearner(tmp_path)
    with learner.start() as process:
        wait_until(lambda: learner.version() > 5, SECONDS)
        newest = learner.version()
        process.kill()
    learner.shim.set(bytes_left=0)
    with learner.start() as process:
        process.wait_for("run_obstructed", SECONDS)
        wait_until(lambda: learner.shim.seen("full_writes") > 0, SECONDS)
        assert process.running
        learner.shim.heal()
        wait_until(lambda: learner.version() > newest, SECONDS)
