"""The examples of docs/plugins.md, as a learner and an actor load them."""

import asyncio
import re
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from actor.build import make_handlers
from actor.config import ActorConfig
from actor.federation.federation_client import FederationLink
from actor.federation.local_nodes import LearningTasks, Participants
from actor.handlers.builtin import HandlerResources
from actor.learner.policy_client import PolicyLink
from actor.learner.trajectory_uploads import Uploads
from actor.metrics import ActorMetrics
from actor.session.actor_identity import ActorIdentity
from learner.build import build_run, check_training
from learner.config import LearnerConfig, TrainingConfig
from learner.runs.progress import RunState
from learner.sources.serial_source import SerialSource
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.handlers import Context
from parlmesh.policies import load_policy
from parlmesh.rollouts import evaluate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/plugins"
SMALL = {"num_envs": 8, "trajectory_steps": 16, "goal_return": None, "evaluation_interval_steps": 10**9}


def source(name):
    return f"{EXAMPLES / name}.py:plugin"


async def trained(tmp_path, plugin, **training):
    config = LearnerConfig(
        mode="serial",
        run_dir=tmp_path,
        plugins=(source(plugin),),
        training=TrainingConfig.model_validate({**SMALL, "evaluation_episodes": 1, **training}),
    )
    parts = build_run(config)
    run = parts.run
    serial = SerialSource(
        run.config, run.registry, run.receive, on_failure=run.fail, ending=lambda: run.ending, step_seconds=60.0
    )
    async with asyncio.timeout(60):
        await run.train(serial)
    serial.close()
    parts.recorder.close()
    assert run.progress.state is RunState.FINISHED, run.progress.reason
    return run


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_has_at_most_thirty_lines_of_code(path):
    text = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)
    code = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert 10 < len(code) <= 30


async def test_the_example_environment_is_learnt(tmp_path):
    environment = {"id": "Corridor-v0", "kwargs": {"length": 4}}
    run = await trained(tmp_path, "corridor", environment=environment, step_budget=8_000, hidden=[16])
    returns = evaluate(load_policy(run.registry.get("").blob.data), environment, 5, 0)
    assert returns.min() == pytest.approx(0.97), "four steps to the right and no other"


async def test_the_example_algorithm_trains_by_name_and_improves(tmp_path):
    run = await trained(tmp_path, "hill_climbing", algorithm="hill_climbing", step_budget=12_000, custom={"noise": 0.5})
    trainer = run._trainer
    assert trainer._score > 30, "a random policy keeps the pole up for about 20 steps"
    before = trainer.policy_blob()
    kept = dict(trainer.tensors())
    trainer.update([], 0.0)
    trainer.restore(kept)
    assert trainer.policy_blob() == before


async def test_the_example_network_is_built_on_both_sides(tmp_path):
    run = await trained(tmp_path, "residual", network="residual", hidden=[8, 8], step_budget=500)
    policy = load_policy(run.registry.get("").blob.data)
    assert len(evaluate(policy, {"id": "CartPole-v1"}, 2, 0)) == 2


def handler(**config):
    resources = HandlerResources(
        ActorIdentity("n", "a", 1),
        cast(PolicyLink, None),
        cast(Uploads, None),
        ActorMetrics(CollectorRegistry()),
        Participants(["n"], cast(FederationLink, None), LearningTasks({})),
    )
    return make_handlers(ActorConfig(**config), resources)


def test_the_example_handler_answers_and_refuses():
    found = handler(plugins=(source("word_count"),))["word_count"]
    context = Context(task_id="t", attempt=1, actor_id="a", slot=0)
    assert found.run({"texts": ["to be or", "not to be"], "most": 2}, {}, context) == {"words": {"to": 2, "be": 2}}
    with pytest.raises(InvalidInput, match="word_count needs texts, a list, got None"):
        found.run({}, {}, context)


def test_a_kind_that_exists_is_not_taken_by_a_plugin(tmp_path):
    text = (EXAMPLES / "word_count.py").read_text().replace('"word_count"', '"echo"')
    (tmp_path / "plugged_echo.py").write_text(text)
    with pytest.raises(ConfigError, match="the kind 'echo' of a plug-in's handler exists already"):
        handler(plugins=(f"{tmp_path / 'plugged_echo.py'}:plugin",))


def test_an_algorithm_that_nobody_brings_is_refused_with_the_known_names():
    training = TrainingConfig(algorithm="hill_climbing")
    with pytest.raises(ConfigError, match="must be one of ppo, dqn, sac, td3, q_learning, got 'hill_climbing'"):
        check_training(LearnerConfig(), training)
    check_training(LearnerConfig(plugins=(source("hill_climbing"),)), training)


def test_a_network_that_does_not_fit_is_refused_by_name(tmp_path):
    text = (EXAMPLES / "residual.py").read_text()
    text = text.replace("spec.action.outputs", "7").replace('"residual"', '"plugged_misfit"')
    (tmp_path / "plugged_misfit.py").write_text(text)
    config = LearnerConfig(
        mode="serial",
        run_dir=tmp_path / "run",
        plugins=(f"{tmp_path / 'plugged_misfit.py'}:plugin",),
        training=TrainingConfig.model_validate({**SMALL, "network": "plugged_misfit", "hidden": [8]}),
    )
    with pytest.raises(
        ConfigError, match=r"network 'plugged_misfit' must turn features \[2, 4\] into outputs \[2, 2\]"
    ):
        build_run(config)
