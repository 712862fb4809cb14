"""Builds the trainer that a configuration asks for. Only this module knows every algorithm and backend."""

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.plugins import Algorithm
from parlmesh.policies import PolicySpec
from parlmesh.policies.convolutions import CONVOLUTIONS
from parlmesh.policies.custom_networks import custom_network
from parlmesh.telemetry import get_logger
from parlmesh.training.continuous.config import SacConfig, Td3Config
from parlmesh.training.continuous.trainer import ContinuousModel, ContinuousTrainer
from parlmesh.training.dqn_trainer import DqnTrainer
from parlmesh.training.numpy_model import DenseModel, Model
from parlmesh.training.numpy_q_model import DenseQModel, QModel
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.q_learning_trainer import QLearningTrainer
from parlmesh.training.settings.dqn import DqnConfig
from parlmesh.training.settings.ppo import PpoConfig
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.training.trainer import Trainer
from parlmesh.types import EnvironmentSpec

log = get_logger("parlmesh.trainers")

# Minibatches are small, so more threads would only wait for each other.
_MOST_THREADS = 4
# Targets by lag limit: index = the largest lag, in versions, that they tolerate; the last tolerates any lag.
_BY_AGE = ("gae", "weighted", "vtrace")

CONTINUOUS = ("sac", "td3")
ALGORITHMS = ("ppo", "dqn", *CONTINUOUS, "q_learning")
# Algorithms whose gradients several ranks can share.
RANKED = ("ppo", "dqn", "sac")


def policy_for(config: TrainingConfig, environment: EnvironmentSpec) -> PolicySpec:
    """The policy that a run trains in its environment."""
    kind, name = str(environment.action.kind), config.environment.id
    if config.algorithm in ("dqn", "q_learning") and kind != "discrete":
        raise ConfigError(f"training.algorithm {config.algorithm} needs discrete actions; those of {name} are {kind}")
    if config.algorithm in CONTINUOUS and kind != "continuous":
        raise ConfigError(f"training.algorithm {config.algorithm} needs continuous actions; those of {name} are {kind}")
    if config.algorithm in CONTINUOUS and config.network != "mlp":
        raise ConfigError(f"training.network must be mlp for {config.algorithm}, got {config.network}")
    if config.algorithm == "q_learning":
        if not environment.observation_states:
            raise ConfigError(f"training.algorithm q_learning needs states; {name} gives arrays")
        return PolicySpec.for_environment(environment, network="tabular", hidden=(), choice="epsilon_greedy")
    _check_search(config, environment)
    if config.algorithm == "dqn" and config.network not in ("mlp", *CONVOLUTIONS):
        known = ", ".join(CONVOLUTIONS)
        raise ConfigError(f"training.network must be mlp or one of {known} for dqn, got {config.network}")
    if config.algorithm == "dqn":
        own: dict[str, Any] = {"choice": "epsilon_greedy", "dueling": config.dqn.dueling}
    elif config.algorithm in CONTINUOUS:
        own = {"choice": "squashed" if config.algorithm == "sac" else "noisy"}
    else:
        own = {"actions": config.ppo.actions if config.algorithm == "ppo" else "squashed"}
    return PolicySpec.for_environment(
        environment,
        network=config.network,
        hidden=config.hidden,
        activation=config.activation,
        normalised=config.normalise_observations,
        **own,
    )


def _check_search(config: TrainingConfig, environment: EnvironmentSpec) -> None:
    if not (config.search.simulations or config.search.evaluation_simulations):
        return
    if not environment.opposed:
        raise ConfigError(f"training.search is for games, and {config.environment.id} has one player")
    if config.algorithm != "ppo" or custom_network(config.network) is None:
        found = f"{config.algorithm} with {config.network}"
        raise ConfigError(
            f"training.search needs algorithm ppo and a network that travels with its values, got {found}"
        )


def check_algorithm(config: TrainingConfig, plugins: Mapping[str, Algorithm]) -> None:
    """Raises ConfigError when the algorithm is unknown, or when a plug-in reuses the name of a built-in one."""
    for name in plugins:
        if name in ALGORITHMS:
            raise ConfigError(f"a plugin adds the algorithm {name!r}, which already exists; choose another name")
    if config.algorithm not in (*ALGORITHMS, *plugins):
        known = ", ".join((*ALGORITHMS, *sorted(plugins)))
        raise ConfigError(f"training.algorithm must be one of {known}, got {config.algorithm!r}")


def trainer_for(
    config: TrainingConfig,
    policy: PolicySpec,
    environment: EnvironmentSpec,
    plugins: Mapping[str, Algorithm] = MappingProxyType({}),
    *,
    max_policy_lag: int | None = None,
    ranked: Callable[[Any], Any] = lambda model: model,
) -> Trainer:
    """A new trainer whose initial weights come from the seed. A serial run has no lag, whatever its limit is.
    `ranked` may wrap the model so that other processes compute part of its gradients."""
    check_algorithm(config, plugins)
    rng = np.random.default_rng(config.seed)
    if config.algorithm in plugins:
        return _checked(config.algorithm, plugins[config.algorithm](policy, environment, config.custom, rng))
    if config.algorithm == "q_learning":
        return QLearningTrainer(policy, config.q_learning)
    lag = config.max_policy_lag if max_policy_lag is None else max_policy_lag
    model = ranked(model_for(config, policy, rng, lag))
    if config.algorithm in CONTINUOUS:
        return ContinuousTrainer(policy, environment, _continuous_settings(config, lag), model, rng)
    if config.algorithm == "dqn":
        return DqnTrainer(policy, environment, config.dqn, model, rng, stacked=config.environment.stacked)
    settings = _ppo_settings(config, lag)
    log.info("targets_chosen", targets=settings.targets, asked=config.ppo.targets, max_policy_lag=lag)
    return PpoTrainer(policy, settings, model, rng)


def model_for(config: TrainingConfig, policy: PolicySpec, rng: np.random.Generator, max_policy_lag: int) -> Any:
    """The model to train; draws its weights before anything else uses `rng`."""
    if config.algorithm in CONTINUOUS:
        return _continuous(config, _continuous_settings(config, max_policy_lag), policy, rng)
    if config.algorithm == "dqn":
        threads = {"torch_threads": config.dqn.torch_threads or torch_threads(max_policy_lag, _cores())}
        return _q_model(config, config.dqn.model_copy(update=threads), policy, rng)
    return _model(config, _ppo_settings(config, max_policy_lag), policy, rng)


def _ppo_settings(config: TrainingConfig, max_policy_lag: int) -> PpoConfig:
    """Chooses the targets by the lag limit: GAE treats every step as one of the current policy."""
    settings = config.ppo
    if config.search.simulations or settings.targets == "auto":
        # Search targets do not age like chosen steps do, so nothing is weighted by the behaviour policy.
        age = 0 if config.search.simulations else max_policy_lag
        settings = settings.model_copy(update={"targets": _BY_AGE[min(age, len(_BY_AGE) - 1)]})
    threads = settings.torch_threads or torch_threads(max_policy_lag, _cores())
    return settings.model_copy(update={"torch_threads": threads})


def torch_threads(max_policy_lag: int, cores: int) -> int:
    """One thread for a reproducible run: sums differ with the number of threads."""
    return min(_MOST_THREADS, cores) if max_policy_lag else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _checked(name: str, trainer: Trainer) -> Trainer:
    for method in ("update", "policy_blob", "tensors", "restore"):
        if not callable(getattr(trainer, method, None)):
            raise ConfigError(f"algorithm {name!r} must give a trainer with {method}(), got {type(trainer).__name__}")
    return trainer


def _model(config: TrainingConfig, settings: PpoConfig, policy: PolicySpec, rng: np.random.Generator) -> Model:
    if _needs_torch(config):
        # torch is slow to import, so only runs that need it import it.
        from parlmesh.training.torch_device import torch_device
        from parlmesh.training.torch_model import TorchModel

        return TorchModel(policy, settings, rng, torch_device(config.device))
    return DenseModel(policy, settings, rng)


def _q_model(config: TrainingConfig, settings: DqnConfig, policy: PolicySpec, rng: np.random.Generator) -> QModel:
    if _needs_torch(config):
        from parlmesh.training.torch_device import torch_device
        from parlmesh.training.torch_q_model import TorchQModel

        return TorchQModel(policy, settings, rng, torch_device(config.device))
    return DenseQModel(policy, settings, rng)


def _continuous_settings(config: TrainingConfig, lag: int) -> SacConfig | Td3Config:
    settings = config.sac if config.algorithm == "sac" else config.td3
    threads = {"torch_threads": settings.torch_threads or torch_threads(lag, _cores())}
    return settings.model_copy(update=threads)


def _continuous(
    config: TrainingConfig, settings: SacConfig | Td3Config, policy: PolicySpec, rng: np.random.Generator
) -> ContinuousModel:
    assert _needs_torch(config)
    from parlmesh.training.continuous.sac_model import SacModel
    from parlmesh.training.continuous.td3_model import Td3Model
    from parlmesh.training.torch_device import torch_device

    device = torch_device(config.device)
    if isinstance(settings, SacConfig):
        return SacModel(policy, settings, rng, device)
    return Td3Model(policy, settings, rng, device)


def _needs_torch(config: TrainingConfig) -> bool:
    if config.backend == "numpy" and config.algorithm in CONTINUOUS:
        raise ConfigError(f"training.backend must be torch or auto for {config.algorithm}, got numpy")
    if config.backend == "numpy" and config.network != "mlp":
        raise ConfigError(f"training.backend must be torch or auto for a {config.network} network, got numpy")
    if config.backend == "numpy" and config.device == "cuda":
        raise ConfigError("training.backend must be torch or auto for device cuda, got numpy", key="training.backend")
    return (
        config.algorithm in CONTINUOUS
        or config.backend == "torch"
        or config.network != "mlp"
        or config.device == "cuda"
    )


def check_device(config: TrainingConfig) -> None:
    """Raises ConfigError when the run asks for a device that this machine does not have."""
    if config.algorithm in ("ppo", "dqn", *CONTINUOUS) and _needs_torch(config):
        from parlmesh.training.torch_device import torch_device

        torch_device(config.device)
