"""Policy versions of a real fleet whose learner is killed before its first checkpoint, twice, and begun anew."""

import shutil

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
    # No checkpoint is ever written.
    "training.checkpoint_interval_versions": 100_000,
}


def trained(fleet, versions):
    """Waits until so many versions came after the first, and gives the newest and the run's uid."""
    with grpc.insecure_channel(fleet.learner_address) as channel:
        stub = TrainingServiceStub(channel)

        def standing():
            return stub.GetTraining(pb.GetTrainingRequest(), timeout=10, wait_for_ready=True).training

        first = wait_until(lambda: standing().progress.policy_version, PATIENCE)
        wait_until(lambda: standing().progress.policy_version >= first + versions, PATIENCE)
        found = standing()
        return found.progress.policy_version, found.run_uid


def test_a_learner_killed_before_its_first_checkpoint_trains_on_and_so_does_a_fresh_run(fleet):
    fleet.scheduler()
    learner, actor = fleet.learner(**SETTINGS), fleet.actor()
    highest, uid = trained(fleet, 5)
    for _ in range(2):
        learner.kill()
        assert not list(fleet.run_dir.glob("checkpoints/v*")), "killed before the first checkpoint"
        learner = fleet.learner(**SETTINGS)
        before = highest
        highest, same = trained(fleet, 5)
        assert highest > before + 5, "versions never go back"
        assert same == uid
    assert not actor.events("policy_refused")
    # The run is begun anew under its old id.
    learner.kill()
    shutil.rmtree(fleet.run_dir)
    learner = fleet.learner(**SETTINGS)
    highest, other = trained(fleet, 5)
    assert highest < before, "its versions begin at 1"
    assert other not in ("", uid)
    said = actor.wait_for("run_began_anew")
    assert (said["run_id"], said["run_uid"]) == ("run", other)
    assert learner.running
