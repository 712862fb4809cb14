"""Federated reinforcement learning: every node runs PPO in its own environment, and the policies are aggregated.

The weights of the policy and the value network are aggregated. Adam's moments start from zero in every round, since
they belong to the gradients of one environment. The model file is also a policy file, so actors can use it.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from parlmesh.config import Config
from parlmesh.environments import environment_spec
from parlmesh.policies import PolicySpec, load_policy, pack_policy
from parlmesh.rollouts import Collector, evaluate
from parlmesh.training.numpy_model import DenseModel
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.settings.ppo import PpoConfig
from parlmesh.types import Array

from ..learning_task import Evaluated, FirstModel, Fitted, Part
from . import varied_cart_pole  # noqa: F401 - registers it
from .settings import parse_settings


class EnvironmentSettings(Config):
    """The environment."""

    id: str = Field(default="CartPole-v1", min_length=1)
    """Gymnasium id."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Constructor arguments on every node."""


class LocalPpoSettings(Config):
    """A node's work in a round."""

    environment: EnvironmentSettings = EnvironmentSettings()
    node_kwargs: tuple[dict[str, Any], ...] = ()
    """Arguments that differ by node: node k takes the k-th, cyclically."""
    num_envs: int = Field(default=32, ge=1, le=65_536)
    """Environments stepped together per node."""
    trajectory_steps: int = Field(default=32, ge=1, le=65_536)
    """Steps of every environment before each update."""
    updates: int = Field(default=4, ge=1, le=10_000)
    """Updates per round."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy and of the value network."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation between the layers."""
    evaluation_episodes: int = Field(default=10, ge=1, le=10_000)
    """Whole greedy episodes per node and evaluation."""
    ppo: PpoConfig = PpoConfig()


class LocalPpo:
    """PPO with numpy perceptrons."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = parse_settings(LocalPpoSettings, "ppo", settings)
        self._spec = PolicySpec.for_environment(
            environment_spec(self._environment(1)),
            hidden=self._settings.hidden,
            activation=self._settings.activation,
        )

    def first(self, seed: int) -> FirstModel:
        """Weights drawn by the seed."""
        model = DenseModel(self._spec, self._settings.ppo, np.random.default_rng(seed))
        return FirstModel(model.named_weights(), metadata={"policy": self._spec.to_json()})

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """Collects and updates several times; samples are environment steps."""
        settings = self._settings
        collect_seed, update_seed = np.random.SeedSequence([part.seed, part.number, part.round]).spawn(2)
        rng = np.random.default_rng(update_seed)
        model = DenseModel(self._spec, settings.ppo, rng)
        model.load_named(tensors)
        trainer = PpoTrainer(self._spec, settings.ppo, model, rng)
        collector = Collector(self._environment(part.number), settings.num_envs, collect_seed)
        steps, returns = 0, []
        try:
            for _ in range(settings.updates):
                part.check()
                fragment = collector.collect(load_policy(trainer.policy_blob()), settings.trajectory_steps)
                steps += trainer.update([fragment], 0.0).steps
                returns += [episode.total_reward for episode in fragment.episodes]
        finally:
            collector.close()
        metrics = {"return": float(np.mean(returns))} if returns else {}
        return Fitted(model.named_weights(), steps, metrics)

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Evaluated:
        """Greedy play in the node's own environment."""
        policy = load_policy(pack_policy(self._spec, {name: np.asarray(value) for name, value in tensors.items()}))
        episodes = self._settings.evaluation_episodes
        seed = int(np.random.SeedSequence([part.seed, part.number, part.round, 1]).generate_state(1)[0])
        returns = evaluate(policy, self._environment(part.number), episodes, seed)
        return Evaluated(episodes, {"return": float(returns.mean())})

    def _environment(self, number: int) -> dict[str, Any]:
        settings = self._settings
        own = settings.node_kwargs[(number - 1) % len(settings.node_kwargs)] if settings.node_kwargs else {}
        return {"id": settings.environment.id, "kwargs": {**settings.environment.kwargs, **own}}
