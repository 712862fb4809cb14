"""The trainer that a configuration asks for: the one place that knows which algorithms and backends there are."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.plugins import Algorithm
from parlmesh.policies import PolicySpec
from parlmesh.training.dqn_trainer import DqnTrainer
from parlmesh.training.model import DenseModel, Model
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.q_learning_trainer import QLearningTrainer
from parlmesh.training.q_model import DenseQModel, QModel
from parlmesh.training.trainer import Trainer
from parlmesh.types import EnvironmentSpec

from .config import TrainingConfig

ALGORITHMS = ("ppo", "dqn", "q_learning")


def policy_for(config: TrainingConfig, environment: EnvironmentSpec) -> PolicySpec:
    """The policy of a training in its environment."""
    if config.algorithm in ("dqn", "q_learning") and environment.action.kind != "discrete":
        kind, name = environment.action.kind, config.environment.id
        raise ConfigError(f"training.algorithm {config.algorithm} needs discrete actions; those of {name} are {kind}")
    if config.algorithm == "q_learning":
        if not environment.observation_states:
            raise ConfigError(f"training.algorithm q_learning needs states; {config.environment.id} gives arrays")
        return PolicySpec.for_environment(environment, network="tabular", hidden=(), choice="epsilon_greedy")
    if config.algorithm == "dqn" and config.network not in ("mlp", "conv"):
        raise ConfigError(f"training.network must be mlp or conv for dqn, got {config.network}")
    values = {"choice": "epsilon_greedy", "dueling": config.dqn.dueling} if config.algorithm == "dqn" else {}
    return PolicySpec.for_environment(
        environment,
        network=config.network,
        hidden=config.hidden,
        activation=config.activation,
        normalised=config.normalise_observations,
        **values,
    )


def check_algorithm(config: TrainingConfig, plugins: Mapping[str, Algorithm]) -> None:
    """ConfigError when nobody brings the algorithm, or a plug-in takes the name of another."""
    for name in plugins:
        if name in ALGORITHMS:
            raise ConfigError(f"a plugin brings the algorithm {name!r}, which exists already; choose another name")
    if config.algorithm not in (*ALGORITHMS, *plugins):
        known = ", ".join((*ALGORITHMS, *sorted(plugins)))
        raise ConfigError(f"training.algorithm must be one of {known}, got {config.algorithm!r}")


def trainer_for(
    config: TrainingConfig,
    policy: PolicySpec,
    environment: EnvironmentSpec,
    plugins: Mapping[str, Algorithm] = MappingProxyType({}),
) -> Trainer:
    """A trainer at its first update; the seed decides its weights."""
    check_algorithm(config, plugins)
    rng = np.random.default_rng(config.seed)
    if config.algorithm in plugins:
        return _checked(config.algorithm, plugins[config.algorithm](policy, environment, config.custom, rng))
    if config.algorithm == "q_learning":
        return QLearningTrainer(policy, config.q_learning)
    if config.algorithm == "dqn":
        return DqnTrainer(policy, environment, config.dqn, _q_model(config, policy, rng), rng)
    return PpoTrainer(policy, config.ppo, _model(config, policy, rng), rng)


def _checked(name: str, trainer: Trainer) -> Trainer:
    for method in ("update", "policy_blob", "tensors", "restore"):
        if not callable(getattr(trainer, method, None)):
            raise ConfigError(f"algorithm {name!r} must give a trainer with {method}(), got {type(trainer).__name__}")
    return trainer


def _model(config: TrainingConfig, policy: PolicySpec, rng: np.random.Generator) -> Model:
    if _needs_torch(config):
        # Only who asks for torch waits for its import.
        from parlmesh.training.devices import torch_device
        from parlmesh.training.torch_model import TorchModel

        return TorchModel(policy, config.ppo, rng, torch_device(config.device))
    return DenseModel(policy, config.ppo, rng)


def _q_model(config: TrainingConfig, policy: PolicySpec, rng: np.random.Generator) -> QModel:
    if _needs_torch(config):
        from parlmesh.training.devices import torch_device
        from parlmesh.training.torch_q_model import TorchQModel

        return TorchQModel(policy, config.dqn, rng, torch_device(config.device))
    return DenseQModel(policy, config.dqn, rng)


def _needs_torch(config: TrainingConfig) -> bool:
    if config.backend == "numpy" and config.network != "mlp":
        raise ConfigError(f"training.backend must be torch or auto for a {config.network} network, got numpy")
    if config.backend == "numpy" and config.device == "cuda":
        raise ConfigError("training.backend must be torch or auto for device cuda, got numpy", key="training.backend")
    return config.backend == "torch" or config.network != "mlp" or config.device == "cuda"


def check_device(config: TrainingConfig) -> None:
    """ConfigError when the training asks for a device that is not there."""
    if config.algorithm in ("ppo", "dqn") and _needs_torch(config):
        from parlmesh.training.devices import torch_device

        torch_device(config.device)
