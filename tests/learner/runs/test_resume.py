"""A resumed serial run equals the uninterrupted one, bit for bit."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from learner.build import build_run
from learner.config import LearnerConfig, TrainingConfig
from learner.runs.progress import RunState
from learner.sources.serial_source import SerialSource
from parlmesh.testing import wait_until_async, within

TRAINING = {
    "num_envs": 4,
    "trajectory_steps": 8,
    "batch_trajectories": 2,
    "hidden": [8],
    "step_budget": 700,
    "goal_return": None,
    "evaluation_interval_steps": 150,
    "evaluation_episodes": 3,
    "checkpoint_interval_versions": 3,
    # Not a multiple of anything else: starts fall between checkpoints and on them.
    "restart_steps": 40,
    "normalise_observations": True,
    "ppo": {"minibatch_steps": 9},
}


@pytest.fixture(scope="module", autouse=True)
def without_pictures():
    """Nobody looks at the curves of so many runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learner.files.recorder.draw_learning_curve", lambda *arguments: None)
        yield


async def begin(folder, **changes):
    training = TrainingConfig.model_validate({**TRAINING, **changes})
    config = LearnerConfig(mode="serial", run_dir=folder, training=training)
    parts = build_run(config)
    run = parts.run
    source = SerialSource(
        config.training, run.registry, run.receive, on_failure=run.fail, ending=lambda: run.ending, step_seconds=60.0
    )
    if parts.found is not None:
        await source.go_on(parts.found.of_source, run.policy_blob(), parts.found.version)
    return parts, source


async def to_the_end(folder, **changes):
    parts, source = await begin(folder, **changes)
    async with within(60, lambda: parts.run.progress):
        await parts.run.train(source)
    parts.recorder.close()
    assert parts.run.progress.state is RunState.FINISHED
    return result(folder)


def result(folder):
    """All of the summary but for time and for versions, which skip some after a restart."""
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("seconds", "steps_per_second", "policy_version", "best_version"):
        del summary[name]
    return summary


async def until(run, updates):
    async with within(60, lambda: run.progress):
        while run.progress.updates < updates:
            await run.changed()


async def killed_after(folder, updates, **changes):
    """As by kill -9: nothing is written any more."""
    parts, source = await begin(folder, **changes)
    training = asyncio.ensure_future(parts.run.train(source))
    await until(parts.run, updates)
    training.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await training
    parts.recorder.close()


async def stopped_after(folder, updates, **changes):
    parts, source = await begin(folder, **changes)
    training = asyncio.ensure_future(parts.run.train(source))
    await until(parts.run, updates)
    parts.run.stop("enough")
    async with within(60, lambda: parts.run.progress):
        await training
    parts.recorder.close()


async def paused_after(folder, updates):
    """Paused, which writes a checkpoint, and then killed."""
    parts, source = await begin(folder)
    training = asyncio.ensure_future(parts.run.train(source))
    await until(parts.run, updates)
    parts.run.pause()
    saves = folder / "checkpoints"
    await wait_until_async(lambda: (saves / f"v{parts.run.progress.version:08d}").exists(), 60)
    training.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await training
    parts.recorder.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory, without_pictures):
    return asyncio.run(to_the_end(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("interrupted", [killed_after, stopped_after, paused_after])
@pytest.mark.parametrize("updates", [(1,), (2, 3, 4)])
async def test_an_interrupted_run_ends_as_the_uninterrupted_one(tmp_path, expected, interrupted, updates):
    done = 0
    for more in updates:
        # A killed run may have to do some updates again.
        done += more
        await interrupted(tmp_path, done)
    assert await to_the_end(tmp_path) == expected


REPLAY = {"capacity_steps": 300, "min_steps": 100, "samples_per_insert": 3.0}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "dqn", "dqn": {"replay": REPLAY}},
        {"algorithm": "dqn", "dqn": {"replay": {**REPLAY, "kind": "prioritised"}}},
        {"algorithm": "q_learning", "environment": {"id": "FrozenLake-v1"}, "normalise_observations": False},
        {"algorithm": "sac", "environment": {"id": "Pendulum-v1"}, "sac": {"minibatch_steps": 16, "replay": REPLAY}},
    ],
    ids=["dqn", "prioritised", "q_learning", "sac"],
)
async def test_values_are_resumed_as_exactly(tmp_path, changes):
    whole = await to_the_end(tmp_path / "whole", **changes)
    for done in (4, 11):
        await killed_after(tmp_path / "resumed", done, **changes)
    assert await to_the_end(tmp_path / "resumed", **changes) == whole


OTHERS: dict[str, dict[str, Any]] = {
    "dqn": {
        "algorithm": "dqn",
        "dqn": {"minibatch_steps": 16, "replay": {"min_steps": 100, "capacity_steps": 400, "kind": "prioritised"}},
        "normalise_observations": False,
    },
    "q_learning": {
        "algorithm": "q_learning",
        "environment": {"id": "FrozenLake-v1"},
        "normalise_observations": False,
    },
    "td3": {
        "algorithm": "td3",
        "environment": {"id": "Pendulum-v1"},
        "td3": {"minibatch_steps": 16, "replay": {"min_steps": 100, "capacity_steps": 400}},
    },
    "memory": {"network": "recurrent"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
async def test_so_does_one_of_every_algorithm(tmp_path, name):
    settings = {**OTHERS[name], "step_budget": 500}
    whole = await to_the_end(tmp_path / "whole", **settings)
    await killed_after(tmp_path / "killed", 5, **settings)
    await stopped_after(tmp_path / "killed", 6, **settings)
    assert await to_the_end(tmp_path / "killed", **settings) == whole


async def test_other_settings_give_another_result(tmp_path, expected):
    assert (await to_the_end(tmp_path, seed=1))["policy_digest"] != expected["policy_digest"]


async def test_without_starts_anew_a_resumed_run_plays_other_games(tmp_path):
    whole = await to_the_end(tmp_path / "whole", restart_steps=0)
    folder = tmp_path / "resumed"
    parts, source = await begin(folder, restart_steps=0)
    training = asyncio.ensure_future(parts.run.train(source))
    await until(parts.run, 5)
    parts.run.stop("enough")
    async with within(60, lambda: parts.run.progress):
        await training
    parts.recorder.close()
    assert (await to_the_end(folder, restart_steps=0))["policy_digest"] != whole["policy_digest"]


async def test_versions_go_on_past_a_damaged_checkpoint(tmp_path):
    await stopped_after(tmp_path, 5)
    newest = max((tmp_path / "checkpoints").iterdir())
    (newest / "state.safetensors").write_bytes(b"")
    parts, _ = await begin(tmp_path)
    assert parts.found.version < int(newest.name[1:]) < parts.run.progress.version + 1, "the next one"
    parts.recorder.close()


@pytest.mark.parametrize("often", [100, 151, 10_000])
async def test_how_often_a_run_is_evaluated_leaves_the_policy_as_it_is(tmp_path, expected, often):
    found = await to_the_end(tmp_path, evaluation_interval_steps=often)
    assert found["policy_digest"] == expected["policy_digest"]
