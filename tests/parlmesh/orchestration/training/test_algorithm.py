"""The algorithm `parl`: the reward that it adds, what it needs, and that a short training beats working alone."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.orchestration.jobs.environment import NAME, OrchestrationJobs
from parlmesh.orchestration.jobs.observation import ENDS, FIELDS, counts
from parlmesh.orchestration.jobs.reference_orchestrators import hand_rule, single_agent, spam
from parlmesh.orchestration.jobs.sub_agents import SUB_AGENTS
from parlmesh.orchestration.training.algorithm import ParlTrainer, Terms
from parlmesh.orchestration.training.config import ParlConfig, PriorConfig, RewardConfig
from parlmesh.orchestration.training.evaluation import by_policy, evaluate_policy, score
from parlmesh.orchestration.training.serial_prior import clone_single_agent
from parlmesh.orchestration.training.serial_training import PLUGIN, train_here
from parlmesh.orchestration.training.variants import VARIANTS, variant_named
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec, load_policy
from parlmesh.training.numpy_model import DenseModel
from parlmesh.types import OBSERVATION, REWARD, TERMINATED, VALID, Fragment


def fragment(*ends, quality=0.5):
    """Two steps of an environment for each end, which is its last observation by name."""
    observations = np.zeros((3, len(ends), len(FIELDS)), np.float32)
    for number, end in enumerate(ends):
        for name, value in end.items():
            observations[2, number, FIELDS.index(name)] = value / 256 if name in ENDS[2:] else value
    ended = np.array([[False] * len(ends), [True] * len(ends)], np.bool_)
    rewards = np.where(ended, np.float32(quality), np.float32(0))
    columns = {OBSERVATION: observations, REWARD: rewards, TERMINATED: ended, VALID: np.ones_like(ended)}
    return Fragment(columns, [])


WIDE = {"created": 25, "assigned": 4, "completed": 3, "widest": 12}


def test_the_terms_are_added_where_an_episode_ended_and_fade():
    terms = Terms(RewardConfig(lambda1=0.3, lambda2=0.2, anneal_share=0.5, cap=50))
    for progress, left in ((0.0, 1.0), (0.25, 0.5), (0.5, 0.0), (1.0, 0.0)):
        given = fragment(WIDE)
        (rewarded,), about = terms.add([given], progress)
        expected = 0.5 + left * (0.3 * 25 / 50 + 0.2 * 3 / 4)
        np.testing.assert_allclose(rewarded.columns[REWARD][:, 0], [0.0, expected], rtol=1e-6)
        assert about["orchestration/lambda1"] == pytest.approx(0.3 * left)
        assert given.columns[REWARD][1, 0] == 0.5


def test_a_chain_is_not_paid_for_unless_it_is_asked_for():
    chain = {**WIDE, "widest": 1}
    for only, expected in ((True, 0.5), (False, 0.5 + 0.15 + 0.15)):
        (rewarded,), _ = Terms(RewardConfig(only_where_wide=only)).add([fragment(chain)], 0.0)
        assert rewarded.columns[REWARD][1, 0] == pytest.approx(expected)


def test_what_is_told_of_a_batch():
    ends = (WIDE | {"coverage": 0.95, "critical": 80, "finished": 1}, {"coverage": 0.2, "critical": 160})
    _, about = Terms(RewardConfig()).add([fragment(*ends)], 0.0)
    assert about["orchestration/success"] == 0.5
    assert about["orchestration/critical_steps"] == 120
    assert about["orchestration/sub_agents"] == 12.5
    assert about["orchestration/finish_rate"] == 0.75
    columns = fragment().columns
    assert "orchestration/success" not in Terms(RewardConfig()).add([Fragment(columns, [])], 0.0)[1]


def test_counts_come_back_exactly_from_observations():
    jobs = OrchestrationJobs(16)
    jobs.reset(seed=0)
    for _ in range(60):
        jobs.step(hand_rule(jobs.world))
        found = counts(jobs._seen()["job"])
        assert np.array_equal(found["critical"], jobs.world.critical)
        assert np.array_equal(found["created"], jobs.world.created)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"reward": {"lambda1": 3}}, "training.custom: reward.lambda1"),
        ({"reward": {"lamda1": 0.1}}, "training.custom: reward.lamda1"),
        ({"unknown": 1}, "training.custom: unknown"),
        ({"prior": {"updates": -1}}, "training.custom: prior.updates"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, sentence):
    load_plugins([PLUGIN])
    spec = environment_spec({"id": NAME})
    with pytest.raises(ConfigError) as refused:
        ParlTrainer(PolicySpec.for_environment(spec), spec, settings, np.random.default_rng(0))
    assert sentence in str(refused.value)


def test_an_environment_that_is_no_orchestrator_s_is_refused():
    spec = environment_spec({"id": "CartPole-v1"})
    with pytest.raises(ConfigError, match="needs an orchestrator's environment"):
        ParlTrainer(PolicySpec.for_environment(spec), spec, {}, np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="variant must be one of annealed"):
        variant_named("other")


def test_a_cloned_policy_works_alone():
    load_plugins([PLUGIN])
    spec, rng = environment_spec({"id": NAME}), np.random.default_rng(0)
    policy = PolicySpec.for_environment(spec)
    model = DenseModel(policy, ParlConfig().ppo, rng)
    clone_single_agent(model, PriorConfig(updates=300), rng, assigning="separate")
    trainer = ParlTrainer(policy, spec, {}, rng)
    trainer.restore({**trainer.tensors(), **model.tensors()})
    found = score(by_policy(load_policy(trainer.policy_blob())), "deep_chain", split="train", jobs=50)
    assert found.coverage == score(single_agent, "deep_chain", split="train", jobs=50).coverage
    assert found.sub_agents == 0


def test_training_changes_the_orchestrator_and_leaves_sub_agents_alone():
    frozen = {name: agent.digest for name, agent in SUB_AGENTS.items()}
    settings = yaml.safe_load(_preset())["training"]
    short, longer = (train_here(VARIANTS["annealed"], settings, seed=0, steps=steps) for steps in (1, 10_000))
    assert {name: agent.digest for name, agent in SUB_AGENTS.items()} == frozen
    assert short.policy != longer.policy
    first, last = longer.curve[0], longer.curve[-1]
    assert (first["orchestration/lambda1"], last["orchestration/lambda1"]) == (0.3, 0.0)


@pytest.mark.slow
def test_a_whole_training_keeps_what_the_documentation_says():
    trained = train_here(VARIANTS["annealed"], yaml.safe_load(_preset())["training"], seed=0, steps=400_000)
    scores = evaluate_policy(load_policy(trained.policy))
    wide, chain = scores["wide_search"], scores["deep_chain"]
    alone = {family: score(single_agent, family) for family in scores}
    assert wide.work_per_step >= 3 * alone["wide_search"].work_per_step
    assert wide.success >= 0.85
    assert chain.coverage >= alone["deep_chain"].coverage - 0.03
    assert chain.work_per_step <= 1.05 * alone["deep_chain"].work_per_step, "there is no speed-up on a chain"
    spammed = np.mean([score(spam, family).coverage for family in scores])
    assert np.mean([found.coverage for found in scores.values()]) > spammed


def _preset():
    from parlmesh.local.presets import settings_file

    return settings_file(Path("parl-orchestrator")).read_text()
