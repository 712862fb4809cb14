"""Runs of a real learner process: killed and restarted, fed with values that are not finite and with old
trajectories."""

import json
import textwrap
from collections import Counter
from functools import partial

import grpc
import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct

from parlmesh.policies import load_policy, unpack_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.testing import free_port, wait_until
from parlmesh.testing.scraping import scraped
from parlmesh.v1 import experience_service_pb2 as experience_pb
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceStub
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from parlmesh.wire import trajectory_to_proto

pytestmark = pytest.mark.e2e

PATIENCE = 60.0
SMALL = {
    "training.num_envs": 4,
    "training.trajectory_steps": 8,
    "training.hidden": "[8]",
    "training.goal_return": "null",
    "training.evaluation_episodes": 2,
}


@pytest.fixture
def learner(fleet):
    """A channel to the fleet's learner."""
    with grpc.insecure_channel(fleet.learner_address) as channel:
        yield channel


def training(channel, run_id=""):
    """Repeats a failed call once: a channel may notice only by its first call that its server was killed."""
    stub, request = TrainingServiceStub(channel), pb.GetTrainingRequest(run_id=run_id)
    try:
        return stub.GetTraining(request, timeout=10, wait_for_ready=True).training
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
    return stub.GetTraining(request, timeout=10, wait_for_ready=True).training


def result(folder):
    """The summary without times, and without versions, some of which are skipped after a restart."""
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("seconds", "steps_per_second", "policy_version", "best_version"):
        del summary[name]
    return summary


def test_a_learner_killed_twice_ends_with_the_same_policy_as_one_that_was_not(fleet, learner):
    settings = {
        **SMALL,
        "mode": "serial",
        "training.num_envs": 16,
        "training.trajectory_steps": 32,
        "training.step_budget": 30_000,
        "training.evaluation_interval_steps": 6_000,
        # The environments restart several times, also between checkpoints.
        "training.restart_steps": 300,
        "training.checkpoint_interval_versions": 4,
    }
    whole = fleet.learner(**settings, run_dir=fleet.folder / "whole")
    whole.wait_for("run_ended", PATIENCE)
    whole.terminate()
    whole.assert_exits(0)

    def reached(steps):
        return training(learner, "run").progress.steps > steps

    for past in (3_000, 12_000):
        process = fleet.learner(**settings)
        if past == 3_000:
            described = Struct()
            described.update({"seed": 5, "step_budget": 100})
            request = pb.CreateTrainingRequest(run_id="later", configuration=described)
            TrainingServiceStub(learner).CreateTraining(request, timeout=10, wait_for_ready=True)
        wait_until(partial(reached, past), PATIENCE)
        process.kill()
    process = fleet.learner(**settings)
    assert 0 < process.wait_for("run_resumed")["steps"] < 30_000
    assert process.wait_for("collector_resumed")
    process.wait_for("run_ended", PATIENCE)
    assert result(fleet.run_dir) == result(fleet.folder / "whole")
    found = training(learner, "run")
    assert found.state == pb.TRAINING_STATE_FINISHED
    assert found.result.policy_digest == result(fleet.run_dir)["policy_digest"]
    assert training(learner, "later").state == pb.TRAINING_STATE_CREATED
    stop_within_seconds(learner)


def stop_within_seconds(channel):
    """A run that has just begun."""
    stub = TrainingServiceStub(channel)
    described = Struct()
    described.update({"step_budget": 10**9, "goal_return": None})
    created = stub.CreateTraining(pb.CreateTrainingRequest(configuration=described), timeout=10).training
    stub.StartTraining(pb.StartTrainingRequest(run_id=created.run_id), timeout=10)
    wait_until(lambda: training(channel, created.run_id).progress.steps, PATIENCE)
    stub.StopTraining(pb.StopTrainingRequest(run_id=created.run_id), timeout=10)
    *_, last = stub.WatchTraining(pb.WatchTrainingRequest(run_id=created.run_id), timeout=10)
    assert (last.training.state, last.training.reason) == (pb.TRAINING_STATE_STOPPED, "stopped on request")


PLUGIN = '''
import gymnasium
import numpy as np

from parlmesh.plugins import Plugin


class Turning(gymnasium.Env):
    """A fair world for a while; then its rewards are no longer numbers one can learn from."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, bad):
        self.bad, self.steps = float(bad), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 4).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = self.bad if self.steps > 100 else float(action)
        observation = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        return observation, reward, self.steps % 20 == 0, False, {}


plugin = Plugin(environments={"Turning-v0": Turning})
'''


@pytest.mark.parametrize(
    ("bad", "event", "dropped", "reason"),
    [
        ("'nan'", "trajectory_refused", "NOT_FINITE", "3 trajectories in a row were refused: column reward has values"),
        # Finite, but more than the sums of an update can hold.
        ("1.0e+37", "update_not_finite", "NOT_FINITE_UPDATE", "3 updates in a row were not finite"),
    ],
)
def test_values_that_are_not_finite_never_reach_a_published_policy(fleet, learner, bad, event, dropped, reason):
    file = fleet.folder / "turning_plugin.py"
    file.write_text(textwrap.dedent(PLUGIN))
    process = fleet.learner(
        **{
            **SMALL,
            "mode": "serial",
            "plugins": f"[{file}:plugin]",
            "training.environment.id": "Turning-v0",
            "training.environment.kwargs.bad": bad,
            "training.max_bad_updates": 3,
            "experience.max_reward": "3.4e+38",
            "training.evaluation_interval_steps": 10**9,
        }
    )
    process.wait_for("run_ended", PATIENCE, state="failed")
    ended = training(learner)
    assert ended.state == pb.TRAINING_STATE_FAILED
    assert reason in ended.reason
    assert dict(ended.progress.dropped_trajectories) == {dropped: 3}
    assert len(process.events(event)) == 3
    # The last good version is still served, and the reason names it.
    answers = list(PolicyServiceStub(learner).GetPolicy(policy_pb.GetPolicyRequest(), timeout=10))
    version = answers[0].header.version
    assert 1 < version == ended.progress.policy_version
    assert ended.reason.endswith(f"version {version} is served")
    _, weights = unpack_policy(b"".join(answer.data for answer in answers))
    assert all(np.isfinite(weight).all() for weight in weights.values())
    assert process.running


LAG, BATCH = 1, 2


class ByHand:
    """A scripted actor that keeps its own account of what the learner may train on."""

    def __init__(self, channel):
        self._policies, self._experience = PolicyServiceStub(channel), ExperienceServiceStub(channel)
        self._collector = Collector({"id": "CartPole-v1"}, 4, collector_seed(0, "by-hand", 1))
        self._sequence = 0
        self.refused: Counter[str] = Counter()
        self.stale = 0
        self.version = 1
        self._waiting = []
        self.batches = []

    def upload(self, versions):
        """One trajectory of each version, in one stream."""
        sent = [self._trajectory(version) for version in versions]
        requests = (experience_pb.UploadTrajectoriesRequest(trajectory=message) for message, _ in sent)
        receipts = list(self._experience.UploadTrajectories(requests, timeout=30))
        for (message, steps), receipt in zip(sent, receipts, strict=True):
            lag = receipt.policy_version - message.policy_version
            # The learner must accept fresh trajectories and refuse old ones on arrival.
            assert (receipt.status.code == 0) == (lag <= LAG), (lag, receipt)
            if receipt.status.code == 0:
                self._waiting.append((message.policy_version, steps))
            else:
                self.refused[receipt.status.message] += 1
        self._train()

    def _train(self):
        """What a correct learner does: the oldest first, nothing past the limit."""
        while True:
            fresh = [each for each in self._waiting if self.version - each[0] <= LAG]
            self.stale += len(self._waiting) - len(fresh)
            self._waiting = fresh[BATCH:] if len(fresh) >= BATCH else fresh
            if len(fresh) < BATCH:
                return
            taken = fresh[:BATCH]
            self.batches.append((sum(steps for _, steps in taken), sum(self.version - v for v, _ in taken) / BATCH))
            self.version += 1

    def _trajectory(self, version):
        request = policy_pb.GetPolicyRequest(run_id="run", version=version)
        blob = b"".join(answer.data for answer in self._policies.GetPolicy(request, timeout=10))
        fragment = self._collector.collect(load_policy(blob), 8)
        self._sequence += 1
        origin = {"run_id": "run", "actor_id": "by-hand", "incarnation": 1, "policy_version": version}
        return trajectory_to_proto(fragment, sequence=self._sequence, task_id="", **origin), fragment.valid_steps


def test_an_independent_count_finds_every_trained_step_inside_the_lag_limit(fleet, learner):
    port = free_port()
    settings = {"training.max_policy_lag": LAG, "training.batch_trajectories": BATCH, "training.step_budget": 10**9}
    process = fleet.learner(**{**SMALL, **settings, "metrics.port": port, "training.evaluation_interval_steps": 10**9})
    actor = ByHand(learner)
    wait_until(lambda: training(learner).progress.policy_version == 1, PATIENCE)
    for round_ in range(8):
        newest = actor.version
        older = max(1, newest - 3)
        # More of one version than the limit lets it train on, and some that are too old on arrival.
        actor.upload([newest] * (5 + round_ % 3) + [older])
        wait_until(lambda: training(learner).progress.policy_version == actor.version, PATIENCE)

    rows = [json.loads(line) for line in (fleet.run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    assert list(np.diff([0, *steps])) == [count for count, _ in actor.batches]
    assert [row["policy/lag"] for row in rows] == [lag for _, lag in actor.batches]
    assert {lag for _, lag in actor.batches} == {0.0, 1.0}
    progress = training(learner).progress
    assert progress.max_policy_lag_seen == LAG
    dropped = actor.stale + sum(actor.refused.values())
    assert dict(progress.dropped_trajectories) == {"POLICY_LAG": dropped}
    assert dropped > 8
    metrics = scraped(port)
    trained = BATCH * len(actor.batches)
    assert metrics["parlmesh_learner_trained_steps_total"] == sum(count for count, _ in actor.batches)
    assert metrics["parlmesh_learner_trajectories_trained_total"] == trained
    assert metrics['parlmesh_learner_policy_lag_versions_bucket{le="1.0"}'] == trained
    assert metrics["parlmesh_learner_policy_lag_versions_count"] == trained
    received = metrics["parlmesh_learner_trajectories_received_total"]
    assert received == trained + dropped + metrics["parlmesh_learner_trajectories_queued"]
    assert process.running
