"""The learner's services over real gRPC, in this process."""

import asyncio
import hashlib

import grpc
import gymnasium
import numpy as np
import pytest

from learner.build import build_run, build_runs, build_services
from learner.config import ExperienceConfig, LearnerConfig, TrainingConfig
from learner.runs.progress import RunState
from parlmesh.client.learner.experience_upload import ExperienceUploads
from parlmesh.client.learner.own_steps import Step, shapes_in
from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable
from parlmesh.policies import load_policy
from parlmesh.policies.policy_file import pack_policy
from parlmesh.policies.policy_spec import PolicySpec
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.rpc import error_from_rpc, error_from_status, open_channel
from parlmesh.testing import serve
from parlmesh.types import ActionSpec
from parlmesh.v1 import experience_service_pb2 as experience_pb
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1 import training_service_pb2 as training_pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceStub
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from parlmesh.wire import tensor_to_proto, trajectory_to_proto

TRAINING = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8], "max_policy_lag": 1}
WAIT = 60.0


class Fixture:
    def __init__(self, runs, channel, stopping):
        self.runs = runs
        self.channel = channel
        self.stopping = stopping
        self.live = runs.get("").live
        self.run = self.live.run
        self.policies = PolicyServiceStub(channel)
        self.experience = ExperienceServiceStub(channel)
        self.trainings = TrainingServiceStub(channel)

    async def upload(self, *messages):
        async def requests():
            for message in messages:
                yield experience_pb.UploadTrajectoriesRequest(trajectory=message)

        return [receipt async for receipt in self.experience.UploadTrajectories(requests(), timeout=WAIT)]

    def trajectory(self, sequence=1, **changes):
        policy = load_policy(self.run.registry.get("").blob.data)
        fragment = Collector({"id": "CartPole-v1"}, 4, collector_seed(0, "a", 1)).collect(policy, 8)
        identity = {"run_id": "run", "actor_id": "a", "incarnation": 1, "policy_version": 1, "task_id": "t"}
        return trajectory_to_proto(fragment, sequence=sequence, **{**identity, **changes})


@pytest.fixture
async def learner(tmp_path):
    """A learner whose run has a policy and does not train."""
    config = LearnerConfig(
        run_dir=tmp_path,
        training=TrainingConfig.model_validate(TRAINING),
        experience=ExperienceConfig(max_trajectory_bytes=20_000),
    )
    scheduler, stopping = open_channel("127.0.0.1:1"), asyncio.Event()
    runs = build_runs(config, scheduler)
    runs.open()
    live = runs.get("").live
    assert live is not None
    live.run.publish()
    async with serve(build_services(config, runs, stopping)) as address:
        channel = open_channel(address)
        yield Fixture(runs, channel, stopping)
        stopping.set()
        await channel.close()
    await scheduler.close()


async def test_a_good_trajectory_gets_a_receipt_and_is_queued(learner):
    learner.live._fleet.asked.outstanding.add("t")
    (receipt,) = await learner.upload(learner.trajectory())
    assert (receipt.sequence, receipt.status.code, receipt.policy_version, receipt.credits) == (1, 0, 1, 1023)
    assert len(learner.run.queue) == 1
    assert learner.live._fleet.outstanding == 0


async def test_an_upload_stream_is_answered_and_ended_when_the_learner_stops(learner):
    call = learner.experience.UploadTrajectories(timeout=WAIT)
    await call.write(experience_pb.UploadTrajectoriesRequest(trajectory=learner.trajectory()))
    assert (await call.read()).status.code == 0
    learner.stopping.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    error = error_from_rpc(caught.value)
    assert (type(error), error.reason) == (Unavailable, "STOPPING")


def own_steps(count):
    """CartPole, played at random by a program that is no actor."""
    world, rng = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    seen, _ = world.reset(seed=0)
    for _ in range(count):
        action = int(rng.integers(2))
        following, reward, terminated, truncated, _ = world.step(action)
        yield Step(seen, action, float(reward), following, terminated, truncated, -0.6931)
        seen = world.reset()[0] if terminated or truncated else following


async def test_steps_of_a_program_of_ones_own_become_trajectories_of_the_run(learner):
    uploads, steps = ExperienceUploads(learner.channel, "run"), list(own_steps(60))
    first = await uploads.add(steps[:20], seconds=WAIT)
    assert (first.trajectories, first.waiting_steps, len(learner.run.queue)) == (0, 20, 0)
    second = await uploads.add(steps[20:], seconds=WAIT)
    ended = sum(step.terminated for step in steps)
    assert ended >= 1
    assert (second.trajectories, second.policy_version) == ((60 + ended) // 32, 1)
    taken = learner.run.queue.take(second.trajectories, 1)
    columns = taken[0].fragment.columns
    # Environment by environment the steps in their order, the resets between them left out.
    observations = np.concatenate([columns["observation"][:-1, env][columns["valid"][:, env]] for env in range(4)])
    np.testing.assert_array_equal(observations, [step.observation for step in steps[: len(observations)]])
    assert 32 - ended <= len(observations) <= 32
    # Whatever follows a step is in the row below it.
    below = np.concatenate([columns["observation"][1:, env][columns["valid"][:, env]] for env in range(4)])
    np.testing.assert_array_equal(below, [step.next_observation for step in steps[: len(below)]])


async def test_steps_that_do_not_fit_are_refused_with_the_learners_reason(learner):
    uploads = ExperienceUploads(learner.channel, "run")
    steps = [step._replace(reward=1e30) for step in own_steps(40)]
    with pytest.raises(InvalidInput, match="column reward must lie within"):
        await uploads.add(steps, seconds=WAIT)
    assert learner.run.queue.dropped["OUT_OF_BOUNDS"] == 1
    with pytest.raises(InvalidInput, match="step 0: observation is not finite"):
        await uploads.add([steps[0]._replace(observation=np.full(4, np.nan))], seconds=WAIT)


@pytest.mark.parametrize("choice", ["squashed", "noisy"])
def test_an_action_in_the_environments_bounds_where_the_policy_has_its_own_is_refused(choice):
    spec = PolicySpec((2,), ActionSpec("continuous", low=(-2.0,), high=(2.0,)), choice=choice)
    shapes, step = shapes_in(pack_policy(spec, {})), Step(np.zeros(2), [1.0], 0.0, np.zeros(2), False)
    shapes.check(0, step)
    with pytest.raises(InvalidInput, match=r"step 3: action is \[1.5\]; it must be -1 to 1"):
        shapes.check(3, step._replace(action=[1.5]))
    unbounded = shapes_in(pack_policy(PolicySpec((2,), spec.action), {}))
    unbounded.check(3, step._replace(action=[1.5]))
    assert (shapes.off_policy, unbounded.off_policy) == (True, False)


async def test_steps_that_were_too_old_when_they_came_are_sent_again_where_any_policy_will_do(learner, monkeypatch):
    uploads, steps = ExperienceUploads(learner.channel, "run"), list(own_steps(80))
    await uploads.add(steps[:20], seconds=WAIT)
    assert uploads._known is not None
    uid, shapes = uploads._known
    training, told = uploads._training, []

    async def read_early(seconds):
        told.append(await training(seconds))
        if len(told) == 1:
            for _ in range(5):
                learner.run.publish()
        return told[-1]

    monkeypatch.setattr(uploads, "_training", read_early)
    assert not shapes.off_policy
    with pytest.raises(FailedPrecondition, match="of policy version 1 is 5 versions old"):
        await uploads.add(steps[20:40], seconds=WAIT)
    told.clear()
    uploads._known = uid, shapes._replace(off_policy=True)
    assert (await uploads.add(steps[40:], seconds=WAIT)).trajectories >= 1
    assert len(told) == 2
    assert learner.run.queue.dropped["POLICY_LAG"] == 2


async def test_steps_of_several_threads_wait_for_their_turn(learner):
    uploads, steps = ExperienceUploads(learner.channel, "run"), list(own_steps(256))
    parts = [uploads.add(steps[start : start + 64], seconds=WAIT) for start in range(0, 256, 64)]
    found = await asyncio.gather(*parts)
    assert [each.policy_version for each in found] == [1] * 4
    columns = [one.fragment.columns for one in learner.run.queue.take(sum(each.trajectories for each in found), 1)]
    seen = [one["observation"][:-1, env][one["valid"][:, env]] for one in columns for env in range(4)]
    observations = np.concatenate(seen)
    np.testing.assert_array_equal(observations, [step.observation for step in steps[: len(observations)]])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"action": 7}, r"step 7: action is 7; it must be 0\.\.1"),
        ({"action": -1}, r"step 7: action is -1; it must be 0\.\.1"),
        ({"action": 0.5}, r"step 7: action is 0\.5; it must be 0\.\.1"),
        ({"action": [1, 0]}, r"step 7: action has the shape \(2,\); the run's policy has \(\)"),
        ({"reward": float("nan")}, "step 7: reward is not finite"),
        ({"reward": "much"}, "step 7: reward is 'much'; it must be a number or an array of numbers"),
        ({"reward": [1.0, 2.0]}, "step 7: reward must be one number"),
        ({"log_prob": float("inf")}, "step 7: log_prob is not finite"),
        ({"observation": np.zeros(3)}, r"step 7: observation has the shape \(3,\); the run's policy has \(4,\)"),
        ({"next_observation": None}, "step 7: next_observation is not finite"),
        ({"observation": np.full(4, 1e300)}, "step 7: observation is not finite"),
        ({"observation": np.zeros(4, complex)}, "step 7: observation is array.*; it must be a number or an array"),
        ({"terminated": "no"}, "step 7: terminated is 'no'; it must be True or False"),
        ({"truncated": None}, "step 7: truncated is None; it must be True or False"),
        ({"truncated": np.array([True])}, "step 7: truncated is .*; it must be True or False"),
        ((np.zeros(4), 0, 1.0), "step 7 is .*; it must be a Step, or a tuple of observation, action, reward"),
        (5, "step 7 is 5; it must be a Step"),
    ],
)
async def test_a_step_that_is_refused_is_named_and_costs_no_other(learner, change, sentence):
    uploads, steps = ExperienceUploads(learner.channel, "run"), list(own_steps(60))
    first = await uploads.add(steps[:20], seconds=WAIT)
    spoilt = steps[20:]
    spoilt[7] = spoilt[7]._replace(**change) if isinstance(change, dict) else change
    with pytest.raises(InvalidInput, match=sentence):
        await uploads.add(spoilt, seconds=WAIT)
    assert len(learner.run.queue) == 0
    second = await uploads.add(steps[20:], seconds=WAIT)
    ended = sum(step.terminated for step in steps)
    assert (first.waiting_steps, second.trajectories) == (20, (60 + ended) // 32)
    assert not learner.run.queue.dropped


def spoil(name, array):
    def change(message):
        for index, column in enumerate(message.columns):
            if column.name == name:
                message.columns[index].CopyFrom(tensor_to_proto(name, array))

    return change


def cut(message):
    message.columns[3].data = message.columns[3].data[:-1]


BAD = [
    (spoil("reward", np.ones((8, 5), np.float32)), "INVALID_ARGUMENT", "SHAPE", "column reward must have shape [8, 4]"),
    (spoil("reward", np.ones((8, 4))), "INVALID_ARGUMENT", "DTYPE", "column reward must be float32, got float64"),
    (cut, "INVALID_ARGUMENT", "TENSOR_LENGTH", "tensor reward of float32[8, 4] must have 128 bytes, got 127"),
    (
        spoil("observation", np.full((9, 4, 4), np.nan, np.float32)),
        "INVALID_ARGUMENT",
        "NOT_FINITE",
        "column observation has values that are not finite",
    ),
    (
        spoil("observation", np.zeros((9, 4, 400), np.float32)),
        "RESOURCE_EXHAUSTED",
        "TENSOR_TOO_LARGE",
        "needs 57600 bytes; the limit is 20000",
    ),
    (
        lambda message: setattr(message, "policy_version", 2),
        "FAILED_PRECONDITION",
        "UNKNOWN_POLICY_VERSION",
        "policy version 2 is unknown; this learner published 1..1",
    ),
    (lambda message: setattr(message, "run_id", "x"), "FAILED_PRECONDITION", "UNKNOWN_RUN", "run 'x' is not trained"),
    (lambda message: setattr(message, "actor_id", ""), "INVALID_ARGUMENT", "TRAJECTORY_ORIGIN", "has no actor_id"),
]


@pytest.mark.parametrize(("change", "code", "reason", "sentence"), BAD)
async def test_a_bad_upload_is_refused_by_name_counted_and_changes_nothing(learner, change, code, reason, sentence):
    blob, message = learner.run.registry.get("").blob, learner.trajectory()
    change(message)
    refused, taken = await learner.upload(message, learner.trajectory(sequence=2))
    assert refused.status.code == getattr(grpc.StatusCode, code).value[0]
    assert sentence in refused.status.message
    assert error_from_status(refused.status).reason == reason
    assert taken.status.code == 0, "the stream stays open for the next one"
    assert learner.run.queue.dropped + learner.runs.past.dropped == {reason: 1}
    assert learner.run.queue.received + learner.runs.past.received == 2
    assert len(learner.run.queue) == 1
    assert learner.run.registry.get("").blob is blob


async def test_a_duplicate_is_refused_and_counted_once(learner):
    first, second = await learner.upload(learner.trajectory(), learner.trajectory())
    assert first.status.code == 0
    assert second.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert "trajectory 1 of actor a incarnation 1 was received before" in second.status.message
    assert len(learner.run.queue) == 1


async def test_a_message_over_the_transport_limit_is_resource_exhausted(learner):
    message = learner.trajectory()
    message.columns[0].data = bytes(9 << 20)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await learner.upload(message)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert learner.run.queue.received == 0
    (receipt,) = await learner.upload(learner.trajectory())
    assert receipt.status.code == 0


async def fetch(learner, **request):
    answers = learner.policies.GetPolicy(policy_pb.GetPolicyRequest(**request), timeout=WAIT)
    return [answer async for answer in answers]


async def test_a_policy_is_fetched_whole_with_its_digest(learner):
    answers = await fetch(learner)
    data, header = b"".join(answer.data for answer in answers), answers[0].header
    assert (header.run_id, header.version, header.size_bytes) == ("run", 1, len(data))
    assert header.digest == hashlib.sha256(data).digest()
    load_policy(data)


async def test_a_reader_that_has_the_newest_gets_no_data(learner):
    (answer,) = await fetch(learner, have_version=1)
    assert answer.not_modified
    assert not answer.data


async def test_an_older_version_can_be_fetched_while_it_is_kept(learner):
    old = learner.run.registry.get("").blob.data
    learner.run.registry.publish(2, b"new")
    assert b"".join(answer.data for answer in await fetch(learner, version=1)) == old
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await fetch(learner, version=9)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
    assert raised.value.details() == "policy version 9 is not kept; there are 1 to 2"


async def test_a_large_policy_comes_in_chunks_of_a_mebibyte(learner):
    learner.run.registry.publish(2, bytes(range(256)) * 10_000)
    answers = await fetch(learner)
    assert [len(answer.data) for answer in answers] == [1 << 20, 1 << 20, 2_560_000 - (2 << 20)]
    assert b"".join(answer.data for answer in answers) == bytes(range(256)) * 10_000


async def test_a_watcher_hears_of_the_present_version_and_of_every_later_one(learner):
    watch = learner.policies.WatchPolicy(policy_pb.WatchPolicyRequest(), timeout=WAIT)
    assert (await watch.read()).header.version == 1
    for version in (2, 3, 7):
        learner.run.registry.publish(version, b"x")
        assert (await watch.read()).header.version == version
    watch.cancel()


def test_a_version_never_goes_back(tmp_path):
    async def publish():
        parts = build_run(LearnerConfig(run_dir=tmp_path, training=TrainingConfig.model_validate(TRAINING)))
        parts.run.registry.publish(5, b"x")
        with pytest.raises(FailedPrecondition, match="must grow: 5 after 5"):
            parts.run.registry.publish(5, b"x")
        parts.recorder.close()

    asyncio.run(publish())


async def test_another_run_is_not_found_by_any_service(learner):
    calls = [
        learner.trainings.GetTraining(training_pb.GetTrainingRequest(run_id="x"), timeout=WAIT),
        learner.trainings.StopTraining(training_pb.StopTrainingRequest(run_id="x"), timeout=WAIT),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        assert error_from_rpc(raised.value).reason == "UNKNOWN_RUN"


async def test_a_run_can_be_looked_at_by_hand(learner):
    answer = await learner.trainings.GetTraining(training_pb.GetTrainingRequest(), timeout=WAIT)
    assert answer.training.run_id == "run"
    assert answer.training.progress.policy_version == 1
    assert answer.training.configuration["num_envs"] == 4
    assert not answer.training.progress.HasField("evaluation_return")
    listed = await learner.trainings.ListTrainings(training_pb.ListTrainingsRequest(), timeout=WAIT)
    assert [training.run_id for training in listed.trainings] == ["run"]


async def test_only_a_running_run_can_be_paused_and_only_a_paused_one_resumed(learner):
    resume = training_pb.ResumeTrainingRequest(run_id="run")
    pause = training_pb.PauseTrainingRequest(run_id="run")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await learner.trainings.PauseTraining(pause, timeout=WAIT)
    assert raised.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    learner.run.progress.state = RunState.RUNNING
    answer = await learner.trainings.PauseTraining(pause, timeout=WAIT)
    assert answer.training.state == training_pb.TRAINING_STATE_PAUSED
    answer = await learner.trainings.ResumeTraining(resume, timeout=WAIT)
    assert answer.training.state == training_pb.TRAINING_STATE_RUNNING
