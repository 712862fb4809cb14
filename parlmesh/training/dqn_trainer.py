"""DQN updates: values of actions from a replay, an epsilon that falls, and a target network that follows."""

from typing import Any

import numpy as np

from parlmesh.policies import PolicySpec
from parlmesh.types import EnvironmentSpec

from .numpy_q_model import QModel
from .replay_trainer import Learnt, Minibatch, ReplayTrainer
from .settings.dqn import DqnConfig


class DqnTrainer(ReplayTrainer):
    """Owns a value network in training."""

    def __init__(
        self,
        spec: PolicySpec,
        environment: EnvironmentSpec,
        config: DqnConfig,
        model: QModel,
        rng: np.random.Generator,
        **settings: Any,
    ) -> None:
        self._config = config
        self._model = model
        super().__init__(spec, environment, config, model, rng, section="dqn", **settings)

    def _learn(self, minibatch: Minibatch, learning_rate: float) -> Learnt:
        terms, norm, errors = self._model.step(minibatch, learning_rate)
        if (self._gradient_steps + 1) % self._config.target_interval == 0:
            self._model.follow(self._config.target_rate)
        means = {"loss/total": terms.loss, "value/mean": terms.value, "value/error": terms.error}
        return Learnt(means, norm, errors)

    def _explored(self, progress: float) -> float:
        return self._config.exploration.epsilon(progress)
