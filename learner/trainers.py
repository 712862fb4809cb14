"""The trainer that a configuration asks for: the one place that knows which algorithms and backends there are."""

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec
from parlmesh.training.model import DenseModel, Model
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.trainer import Trainer
from parlmesh.types import EnvironmentSpec

from .config import TrainingConfig


def policy_for(config: TrainingConfig, environment: EnvironmentSpec) -> PolicySpec:
    """The policy of a training in its environment."""
    return PolicySpec.for_environment(
        environment,
        network=config.network,
        hidden=config.hidden,
        activation=config.activation,
        normalised=config.normalise_observations,
    )


def trainer_for(config: TrainingConfig, policy: PolicySpec) -> Trainer:
    """A trainer at its first update; the seed decides its weights."""
    rng = np.random.default_rng(config.seed)
    return PpoTrainer(policy, config.ppo, _model(config, policy, rng), rng)


def _model(config: TrainingConfig, policy: PolicySpec, rng: np.random.Generator) -> Model:
    if config.backend == "numpy" and config.network != "mlp":
        raise ConfigError(f"training.backend must be torch or auto for a {config.network} network, got numpy")
    if config.backend == "torch" or config.network != "mlp":
        # Only who asks for torch waits for its import.
        from parlmesh.training.torch_model import TorchModel

        return TorchModel(policy, config.ppo, rng)
    return DenseModel(policy, config.ppo, rng)
