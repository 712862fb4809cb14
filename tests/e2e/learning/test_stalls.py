"""Obstacles to a run of real processes cost a task or hold the run up, but never end the learner."""

import os
import shutil
import subprocess
import textwrap

import grpc
import pytest

from parlmesh.testing import wait_until
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
SETTINGS = {
    "training.num_envs": 4,
    "training.trajectory_steps": 8,
    "training.hidden": "[8]",
    "training.goal_return": "null",
    "training.step_budget": 10**9,
    "training.evaluation_interval_steps": 10**9,
    "training.checkpoint_interval_versions": 5,
}


@pytest.fixture
def standing(fleet):
    """The run as its learner reports it."""
    with grpc.insecure_channel(fleet.learner_address) as channel:
        stub = TrainingServiceStub(channel)
        yield lambda: stub.GetTraining(pb.GetTrainingRequest(), timeout=10, wait_for_ready=True).training


def trains(standing):
    steps = standing().progress.steps
    wait_until(lambda: standing().progress.steps > steps + 500, PATIENCE)


def test_an_unknown_kind_holds_the_run_up_until_somebody_offers_it(fleet, standing):
    fleet.scheduler()
    fleet.actor(0, kinds="[echo]")
    learner = fleet.learner(**SETTINGS)
    learner.wait_for("run_obstructed", by="scheduler")
    found = standing()
    assert found.state == pb.TRAINING_STATE_RUNNING
    assert found.obstacle.startswith("the scheduler takes no tasks: ")
    fleet.actor(1)
    learner.wait_for("run_goes_on", PATIENCE, after="scheduler")
    trains(standing)
    assert standing().obstacle == ""


@pytest.mark.slow
def test_a_scheduler_that_forgets_everything_fails_no_run(fleet, standing):
    memory = {"store.kind": "memory"}
    scheduler = fleet.scheduler(**memory)
    # Far more are outstanding than may fail in a row.
    wide = {"training.batch_trajectories": 60, "training.max_policy_lag": 0, "training.max_failed_rollouts": 5}
    learner, _ = fleet.learner(**{**SETTINGS, **wide}), fleet.actor()
    trains(standing)
    scheduler.kill()
    fleet.scheduler(**memory)
    trains(standing)
    found = standing()
    assert found.state == pb.TRAINING_STATE_RUNNING
    assert found.progress.failed_rollouts == 0
    assert learner.running


RAISING = '''
import gymnasium
import numpy as np

from parlmesh.plugins import Plugin


class Raising(gymnasium.Env):
    """Raises at a step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at):
        self.at, self.steps = at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > self.at:
            raise ArithmeticError("the world broke")
        return np.zeros(4, np.float32), 1.0, False, False, {}


plugin = Plugin(environments={"Raising-v0": Raising})
'''


@pytest.fixture
def raising(fleet):
    file = fleet.folder / "raising_plugin.py"
    file.write_text(textwrap.dedent(RAISING))
    return {"plugins": f"[{file}:plugin]"}


def world(at):
    return {"training.environment.id": "Raising-v0", "training.environment.kwargs.at": at}


def test_an_environment_that_always_raises_fails_the_run_with_its_own_message(fleet, standing, raising):
    fleet.scheduler()
    learner = fleet.learner(**{**SETTINGS, **raising, **world(3), "training.max_failed_rollouts": 10})
    fleet.actor(0, **raising)
    fleet.actor(1, **raising)
    learner.wait_for("run_ended", PATIENCE, state="failed")
    found = standing()
    assert found.state == pb.TRAINING_STATE_FAILED
    assert "the world broke" in found.reason
    assert found.progress.failed_rollouts >= 10
    assert "the world broke" in found.progress.last_failure
    assert learner.running


@pytest.mark.slow
def test_occasional_errors_of_an_environment_are_counted_also_in_evaluations(fleet, standing, raising):
    fleet.scheduler()
    often = {"training.evaluation_interval_steps": 50, "training.max_failed_rollouts": 10}
    fleet.learner(**{**SETTINGS, **raising, **world(12), **often})
    fleet.actor(0, **raising)
    wait_until(lambda: standing().progress.failed_evaluations >= 2, PATIENCE)
    trains(standing)
    found = standing()
    assert found.state == pb.TRAINING_STATE_RUNNING
    assert found.progress.failed_rollouts > 0
    assert "the world broke" in found.progress.last_failure


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("a disk of our own needs root and mount")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], check=False)
    if made.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run([umount, "--lazy", str(folder)], check=False)


def fill(file):
    while True:
        file.write(bytes(4096))


@pytest.mark.slow
def test_a_full_disk_holds_the_run_up_until_there_is_room(fleet, standing, small_disk):
    fleet.scheduler()
    fleet.run_dir = small_disk / "run"
    learner, _ = fleet.learner(**SETTINGS), fleet.actor()
    trains(standing)
    with (small_disk / "ballast").open("wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            fill(file)
        learner.wait_for("run_obstructed", PATIENCE, by="disk")
        found = standing()
        assert found.state == pb.TRAINING_STATE_RUNNING
        assert "No space left on device" in found.obstacle
    (small_disk / "ballast").unlink()
    learner.wait_for("run_goes_on", PATIENCE, after="disk")
    trains(standing)
    assert standing().obstacle == ""
    learner.terminate()
    learner.assert_exits(0)
