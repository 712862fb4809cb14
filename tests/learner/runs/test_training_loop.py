"""The run's loop on a source made of a collector: the same that a serial learner uses."""

import asyncio
import contextlib
import json
import threading

import gymnasium
import numpy as np
import pytest

from learner.build import build_run
from learner.config import LearnerConfig, TrainingConfig
from learner.policies.version_numbers import Versions
from learner.runs.progress import RunState
from learner.sources.experience_source import Evaluation
from learner.sources.serial_source import SerialSource
from parlmesh.errors import FailedPrecondition, Unavailable
from parlmesh.testing import wait_until_async, within
from parlmesh.types import Fragment, Trajectory

TRAINING = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8], "step_budget": 300, "goal_return": None}


class Serial(SerialSource):
    """A serial source that counts, and whose evaluations a test may decide."""

    verdict = None

    async def evaluate(self, version, seed, seconds):
        if self.verdict is None:
            return await super().evaluate(version, seed, seconds)
        outcome = self.verdict(version)
        if isinstance(outcome, Exception):
            raise outcome
        return Evaluation(version, outcome, outcome, outcome, 20)


def build(tmp_path, **changes):
    training = TrainingConfig.model_validate({**TRAINING, **changes})
    config = LearnerConfig(mode="serial", run_dir=tmp_path, training=training)
    parts = build_run(config)
    return parts, source_of(parts)


def source_of(parts, kind=Serial):
    run = parts.run
    return kind(
        run.config, run.registry, run.receive, on_failure=run.fail, ending=lambda: run.ending, step_seconds=60.0
    )


async def train(parts, source):
    async with within(60, lambda: standing(parts.run)):
        await parts.run.train(source)
    parts.recorder.close()
    return parts.run.progress


def standing(run):
    """Where a run stands, for a wait that took too long."""
    return f"{run.progress}, {len(run.queue)} queued, {run.queue.training} in training, {run.obstacles.sentence!r}"


async def test_a_run_ends_at_its_budget_with_one_version_per_update(tmp_path):
    parts, source = build(tmp_path)
    progress = await train(parts, source)
    assert progress.state is RunState.FINISHED
    assert progress.reason == "used the budget of 300 steps"
    assert 300 <= progress.steps < 332
    assert progress.version == 1 + parts.run.queue.trained
    assert progress.max_policy_lag_seen == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints",
        "checkpoints.witness",
        "learning-curve.png",
        "metrics.jsonl",
        "models",
        "policy.safetensors",
        "summary.json",
        "tensorboard",
        "versions.json",
    ]


async def test_a_goal_must_be_reached_in_several_evaluations_in_a_row(tmp_path):
    parts, source = build(
        tmp_path, goal_return=100.0, goal_evaluations=2, evaluation_interval_steps=1, step_budget=100_000
    )
    verdicts = iter([100.0, 99.0, 100.0, 120.0, 0.0])
    source.verdict = lambda version: next(verdicts)
    progress = await train(parts, source)
    assert progress.reason == "2 evaluations in a row reached 100"
    assert (progress.best_evaluation_return, progress.best_version) == (120.0, 5)


async def test_an_evaluation_that_fails_costs_only_itself(tmp_path):
    parts, source = build(tmp_path, evaluation_interval_steps=100)
    source.verdict = lambda version: Unavailable("nobody there")
    progress = await train(parts, source)
    assert progress.state is RunState.FINISHED
    assert progress.evaluation_return is None


async def test_an_evaluation_that_hangs_takes_no_thread_from_the_collector_and_ends_when_it_can(tmp_path, monkeypatch):
    parts, source = build(
        tmp_path, evaluation_interval_steps=32, evaluation_seconds=0.05, step_budget=10**9, num_envs=4
    )
    free, begun, ended = threading.Event(), [], []

    def hanging(policy, environment, episodes, seed, *, cancelled, **how):
        begun.append(seed)
        free.wait(60)
        ended.append(cancelled())
        raise Unavailable("cancelled")

    monkeypatch.setattr("learner.sources.serial_source.evaluate", hanging)
    running = asyncio.ensure_future(train(parts, source))
    while parts.run.progress.failed_evaluations < 12:
        await parts.run.changed()
    assert len(begun) == 1, "no other begins while the first does not end"
    assert "hangs in a step" in parts.run.progress.last_failure
    steps = parts.run.progress.steps
    while parts.run.progress.steps < steps + 500:
        await parts.run.changed()
    free.set()
    await wait_until_async(lambda: len(begun) > 1, 60)
    assert ended[0], "the thread was told"
    parts.run.stop("enough")
    await running


async def test_the_deadline_of_an_evaluation_follows_the_measured_speed_unless_it_is_set(tmp_path):
    for chosen in (None, 7.0):
        parts, _ = build(tmp_path / str(chosen), evaluation_seconds=chosen, evaluation_episodes=20)
        parts.run.throughput.step_seconds, parts.run.progress.longest_episode = 0.002, 5_000
        assert parts.run._evaluations.seconds == (chosen or 3 * 20 * 20_000 * 0.002)
        parts.recorder.close()


async def test_an_evaluation_far_below_what_training_earns_is_told_with_both_figures(tmp_path, caplog):
    parts, source = build(tmp_path, evaluation_interval_steps=100)
    source.verdict = lambda version: 0.5
    await train(parts, source)
    told = [record.parlmesh_fields for record in caplog.records if record.message == "evaluation_differs"]
    assert told
    assert (told[-1]["mean_return"], told[-1]["play"]) == (0.5, "greedy")
    assert told[-1]["training_return"] > 5.0


@pytest.mark.parametrize("play", ["greedy", "sampled"])
async def test_evaluations_are_played_as_the_settings_say(play, tmp_path, monkeypatch):
    asked = []

    def playing(policy, environment, episodes, seed, *, sampled, **how):
        asked.append(sampled)
        return np.ones(episodes)

    monkeypatch.setattr("learner.sources.serial_source.evaluate", playing)
    parts, source = build(tmp_path, evaluation_interval_steps=100, evaluation_play=play)
    await train(parts, source)
    assert set(asked) == {play == "sampled"}


async def test_an_environment_that_raises_in_an_evaluation_costs_only_that(tmp_path):
    parts, source = build(tmp_path, evaluation_interval_steps=100)
    source.verdict = lambda version: ArithmeticError("the world broke")
    progress = await train(parts, source)
    assert progress.state is RunState.FINISHED
    assert progress.failed_evaluations >= 3
    assert "ArithmeticError: the world broke" in progress.last_failure
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["failed_evaluations"] == progress.failed_evaluations
    assert summary["last_failure"] == progress.last_failure


async def test_an_evaluation_that_is_no_number_is_a_failed_one(tmp_path):
    parts, source = build(tmp_path, evaluation_interval_steps=100)
    source.verdict = lambda version: float("nan")
    progress = await train(parts, source)
    assert progress.state is RunState.FINISHED
    assert (progress.evaluation_return, progress.goals_in_a_row) == (None, 0)
    assert progress.failed_evaluations >= 3
    for name in ("summary.json", "metrics.jsonl"):
        assert "NaN" not in (tmp_path / name).read_text()


async def test_a_run_that_refuses_whatever_comes_says_so(tmp_path):
    parts, _ = build(tmp_path)
    run = parts.run
    run.publish()
    stranger = Trajectory("run", "a", 1, 1, 7, Fragment({}, []), run_uid="another")
    for _ in range(20):
        assert run.obstacles.sentence == ""
        with pytest.raises(FailedPrecondition, match="started again"):
            run.receive(stranger)
    assert run.obstacles.sentence == "every trajectory is refused, the last ones as OTHER_RUN"
    await train(parts, source_of(parts))
    assert run.obstacles.sentence == ""


async def test_updates_that_are_not_finite_are_never_published_and_end_the_run(tmp_path, monkeypatch):
    parts, source = build(tmp_path, max_bad_updates=3)
    real, poisoned = parts.run._trainer.update, []

    def update(fragments, progress):
        if parts.run.progress.version == 4:
            poisoned.append(1)
            rewards = fragments[0].columns["reward"].copy()
            rewards[0, 0] = np.inf
            fragments = [type(fragments[0])({**fragments[0].columns, "reward": rewards}, [])]
            with np.errstate(invalid="ignore"):
                return real(fragments, progress)
        return real(fragments, progress)

    monkeypatch.setattr(parts.run._trainer, "update", update)
    strikes = []
    parts.run.on_strike = lambda sender, reason, why: strikes.append((sender, reason))
    progress = await train(parts, source)
    assert strikes == [("actor-0", "NOT_FINITE_UPDATE")] * 3
    assert progress.state is RunState.FAILED
    assert progress.reason == "3 updates in a row were not finite; version 4 is served"
    assert parts.run.registry.version == 4
    assert parts.run.queue.dropped == {"NOT_FINITE_UPDATE": 3}
    assert len(poisoned) == 3


async def test_equal_seeds_give_equal_policies_and_others_do_not(tmp_path):
    digests = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        parts, source = build(tmp_path / name, seed=seed)
        await train(parts, source)
        digests.append(parts.run.registry.get("").blob.digest)
    assert digests[0] == digests[1] != digests[2]


async def test_a_resumed_run_goes_on_past_every_version_that_may_have_been_seen(tmp_path):
    parts, source = build(tmp_path, checkpoint_interval_versions=4)
    first = await train(parts, source)
    parts, source = build(tmp_path, checkpoint_interval_versions=4, step_budget=600)
    assert parts.found is not None
    second = await train(parts, source)
    assert first.steps < 600 <= second.steps
    assert second.version - parts.run.queue.trained == first.version + 1


async def test_a_killed_run_goes_on_past_every_version_that_may_have_been_seen(tmp_path):
    uids, highest = set(), 0
    for _ in range(3):
        parts, source = build(tmp_path, step_budget=10**9, checkpoint_interval_versions=10**5)
        assert parts.found is None
        training = asyncio.ensure_future(parts.run.train(source))
        while parts.run.progress.updates < 3:
            await parts.run.changed()
        assert parts.run.progress.version - parts.run.progress.updates > highest
        uids.add(parts.run.registry.run_uid)
        highest = parts.run.progress.version
        training.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await training
        parts.recorder.close()
    assert len(uids) == 1


async def test_a_run_whose_versions_are_lost_is_another_run(tmp_path):
    parts, source = build(tmp_path)
    await train(parts, source)
    before = parts.run.registry.run_uid
    (tmp_path / "versions.json").write_text("[]")
    parts, source = build(tmp_path, step_budget=600)
    assert parts.run.registry.run_uid not in ("", before)
    await train(parts, source)


async def test_versions_are_reserved_before_they_are_published_and_in_blocks(tmp_path):
    versions = Versions(tmp_path)
    writes, version = 0, 0
    for version in range(versions.first, versions.first + 2_500):
        if versions.lacks(version):
            versions.reserve(version)
            writes += 1
        assert Versions(tmp_path).first > version
    assert writes == 3
    versions.give_back(version)
    assert (Versions(tmp_path).first, Versions(tmp_path).uid) == (version + 1, versions.uid)


class Gated(Serial):
    """Hands over what it collected only when the test says so."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    async def request(self, count, min_version):
        self.asked.set()
        await self.open.wait()
        await super().request(count, min_version)
        self.asked.clear()


async def test_a_paused_run_trains_nothing_until_it_is_resumed(tmp_path):
    parts, _ = build(tmp_path, step_budget=10_000)
    source = source_of(parts, Gated)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(train(parts, source))
        await source.asked.wait()
        parts.run.pause()
        source.open.set()
        await wait_until_async(lambda: len(parts.run.queue), 60)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (len(parts.run.queue), parts.run.queue.training, parts.run.progress.version) == (1, 0, 1)
        parts.run.resume()
        while parts.run.progress.version < 3:
            await parts.run.changed()
        parts.run.stop("enough")
    progress = running.result()
    assert (progress.state, progress.reason) == (RunState.STOPPED, "enough")


async def test_a_stopped_run_leaves_a_checkpoint(tmp_path):
    parts, source = build(tmp_path, step_budget=10**9, checkpoint_interval_versions=10**5)
    running = asyncio.ensure_future(train(parts, source))
    while parts.run.progress.version < 2:
        await parts.run.changed()
    parts.run.stop("stopped on request")
    progress = await running
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [f"v{progress.version:08d}"]


class Screen(gymnasium.Env):
    """A small screen of noise; each step shows another."""

    observation_space = gymnasium.spaces.Box(0, 255, (20, 16, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action):
        self._steps += 1
        return self._seen(), float(action), self._steps == 12, False, {}

    def _seen(self):
        return self.np_random.integers(0, 255, (20, 16, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "algorithm",
    [{"algorithm": "ppo"}, {"algorithm": "dqn", "dqn": {"replay": {"min_steps": 64}, "minibatch_steps": 16}}],
    ids=["ppo", "dqn"],
)
async def test_convolutions_train_on_stacked_grey_images(tmp_path, algorithm):
    gymnasium.register("parlmesh-test/Noise-v0", lambda **_: Screen())
    try:
        environment = {"id": "parlmesh-test/Noise-v0", "wrappers": {"GrayscaleObservation": {}}, "stacked": 4}
        parts, source = build(tmp_path, environment=environment, network="conv", evaluation_episodes=2, **algorithm)
        progress = await train(parts, source)
    finally:
        del gymnasium.registry["parlmesh-test/Noise-v0"]
    assert progress.state is RunState.FINISHED, progress
    assert parts.run.queue.trained > 0
