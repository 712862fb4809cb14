"""What admission lets in at its largest: a node may spoil a policy with it, but neither an update nor the run."""

import numpy as np
import pytest

from learner.config import ExperienceConfig
from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.policies import load_policy, unpack_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import Fragment

REPLAY = {"minibatch_steps": 8, "replay": {"capacity_steps": 500, "min_steps": 16, "samples_per_insert": 2.0}}
PPO = {"minibatch_steps": 64, "epochs": 2}


def as_large_as_may_be(fragment, rng):
    bounds, columns = ExperienceConfig(), dict(fragment.columns)
    for name in ("reward", "observation", "log_prob"):
        most = getattr(bounds, f"max_{name}")
        if name in columns and columns[name].dtype == np.float32:
            signs = -1.0 if name == "log_prob" else rng.choice([-1.0, 1.0], columns[name].shape)
            columns[name] = np.full_like(columns[name], most) * np.float32(signs)
    return Fragment(columns, [])


@pytest.mark.parametrize(
    ("algorithm", "environment", "settings"),
    [
        ("ppo", "CartPole-v1", {"ppo": PPO}),
        ("ppo", "CartPole-v1", {"ppo": {**PPO, "targets": "vtrace"}, "normalise_observations": True}),
        ("ppo", "Pendulum-v1", {"ppo": {**PPO, "targets": "weighted"}}),
        ("dqn", "CartPole-v1", {"dqn": REPLAY}),
        ("sac", "Pendulum-v1", {"sac": {**REPLAY, "random_steps": 10}}),
        ("td3", "Pendulum-v1", {"td3": {**REPLAY, "random_steps": 10}}),
        ("q_learning", "FrozenLake-v1", {"network": "tabular", "hidden": ()}),
    ],
)
def test_the_largest_values_that_are_taken_leave_every_update_finite(algorithm, environment, settings):
    config = TrainingConfig(
        **{"algorithm": algorithm, "environment": {"id": environment}, "hidden": (8, 8), **settings}
    )
    spec, rng = environment_spec({"id": environment}), np.random.default_rng(1)
    trainer = trainer_for(config, policy_for(config, spec), spec, max_policy_lag=4)
    collector = Collector({"id": environment}, 4, collector_seed(0, "a", 1))
    for turn in range(4):
        policy = load_policy(trainer.policy_blob())
        honest, other = collector.collect(policy, 8), collector.collect(policy, 8)
        assert trainer.update([honest, as_large_as_may_be(other, rng) if turn else other], turn / 4).applied, turn
    _, weights = unpack_policy(trainer.policy_blob())
    assert all(np.isfinite(weight).all() for weight in weights.values())
