"""Updates of continuous actions from a replay: the first steps explore at random, later ones by the policy itself."""

from typing import Any, Protocol

import numpy as np

from parlmesh.policies import PolicySpec
from parlmesh.types import Array, EnvironmentSpec

from ..replay_trainer import Learnt, Minibatch, ReplayedModel, ReplayTrainer
from .config import SacConfig, Td3Config


class ContinuousModel(ReplayedModel, Protocol):
    """Actor and critics."""

    def step(self, minibatch: Minibatch, learning_rate: float) -> Learnt:
        """One gradient step."""


class ContinuousTrainer(ReplayTrainer):
    """Owns an actor and its critics. Actions in the replay lie in −1..1, whatever the environment's bounds are."""

    def __init__(
        self,
        spec: PolicySpec,
        environment: EnvironmentSpec,
        config: SacConfig | Td3Config,
        model: ContinuousModel,
        rng: np.random.Generator,
        **settings: Any,
    ) -> None:
        self._config = config
        self._model = model
        section = "sac" if isinstance(config, SacConfig) else "td3"
        super().__init__(spec, environment, config, model, rng, section=section, **settings)

    def _learn(self, minibatch: Minibatch, learning_rate: float) -> Learnt:
        return self._model.step(minibatch, learning_rate)

    def _explored(self, progress: float) -> float:
        """All or nothing: a trajectory uses one version, so a few more steps than `random_steps` may be random."""
        return 1.0 if self._steps < self._config.random_steps else 0.0

    def _own_weights(self) -> dict[str, Array]:
        if isinstance(self._config, Td3Config):
            return {"policy.noise": np.array([self._config.exploration_noise], np.float32)}
        return {}
