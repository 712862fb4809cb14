"""A tiny causal model built here, trained with the learner's trainer and acting as on actors."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec, load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.types import ACTION, ACTION_MASK, LOG_PROB, OBSERVATION, VALID

if find_spec("transformers") is None:  # not imported here: it takes a second in every worker
    pytest.skip("transformers is not installed", allow_module_level=True)
from parlmesh.orchestration.jobs.observation import counts
from parlmesh.orchestration.jobs.sub_agents import SUB_AGENTS
from parlmesh.orchestration.language.causal_lm import FOLDER_VARIABLE, CausalPolicy
from parlmesh.orchestration.training.algorithm import ParlTrainer

ENVIRONMENT = {"id": "parlmesh/LanguageOrchestration-v0", "kwargs": {"items": 2, "prompts": 2, "window": 48}}
CUSTOM = {
    "ppo": {
        "targets": "group",
        "objective": "log_ratio",
        "log_ratio_penalty": 0.01,
        "value_coefficient": 0.0,
        "discount": 1.0,
        "learning_rate": 3e-3,
        "epochs": 2,
        "minibatch_steps": 256,
        "target_kl": None,
    },
    "reward": {"cap": 2},
}


@pytest.fixture(scope="module")
def spec():
    load_plugins(["orchestration"])
    return environment_spec(ENVIRONMENT)


def test_token_log_probs_are_those_of_the_model_and_training_moves_the_orchestrator_alone(spec):
    frozen = {agent.digest for agent in SUB_AGENTS.values()}
    policy = PolicySpec.for_environment(spec, network="causal_lm", hidden=(16,))
    trainer = ParlTrainer(policy, spec, CUSTOM, np.random.default_rng(0))
    before = trainer.policy_blob()
    collector = Collector(ENVIRONMENT, 8, collector_seed(0, "actor-0", 1))
    earned = []
    for step in range(12):
        fragment = collector.collect(load_policy(trainer.policy_blob()), 48)
        if step == 0:
            _check_log_probs(load_policy(before), fragment)
        update = trainer.update([fragment], step / 12)
        assert update.applied
        earned.append(update.metrics["orchestration/coverage"])
    collector.close()
    assert trainer.policy_blob() != before
    assert {agent.digest for agent in SUB_AGENTS.values()} == frozen
    assert np.mean(earned[-3:]) > np.mean(earned[:3])


def _check_log_probs(policy, fragment):
    """The log-probability recorded for each token is the model's."""
    seen, mask = fragment.columns[OBSERVATION][5], fragment.columns[ACTION_MASK][5]
    outputs, _ = policy.outputs(seen, mask)
    logits = torch.log_softmax(torch.from_numpy(outputs), 1)
    chosen = logits[torch.arange(len(seen)), torch.from_numpy(fragment.columns[ACTION][5])]
    valid = fragment.columns[VALID][5]
    np.testing.assert_allclose(chosen.numpy()[valid], fragment.columns[LOG_PROB][5][valid], atol=1e-4)
    assert (counts(seen)["widest"] == 2).all()


def test_padding_on_the_left_changes_nothing(spec):
    torch.manual_seed(0)
    short, long = (
        CausalPolicy(PolicySpec((size + 7,), spec.action, hidden=(16,), network="causal_lm")) for size in (16, 32)
    )
    long.load_state_dict(
        {
            name: weight
            if long.state_dict()[name].shape == weight.shape
            else long.state_dict()[name].index_copy(0, torch.arange(len(weight)), weight)
            for name, weight in short.state_dict().items()
        }
    )
    tokens = torch.tensor([[3.0, 9.0, 12.0, 5.0]])
    padded = [torch.cat([torch.zeros(1, size - 4), tokens, torch.zeros(1, 7)], 1) for size in (16, 32)]
    for one, other in zip(short(padded[0]), long(padded[1]), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_model_of_a_folder_takes_the_tiny_ones_place(spec, tmp_path, monkeypatch):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    network = CausalPolicy(PolicySpec.for_environment(spec, network="causal_lm", hidden=(16,)))
    assert network.model.config.n_embd == 8
    assert network(torch.zeros(2, spec.observation_shape[0]))[0].shape == (2, spec.action.outputs)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="which is not a folder"):
        CausalPolicy(PolicySpec.for_environment(spec, network="causal_lm", hidden=(16,)))
