"""How many processes train a run, and who starts them. Imports torch only if there are several."""

from collections.abc import Callable
from typing import Any, Protocol

from parlmesh.algorithm_choice import RANKED
from parlmesh.config import effective
from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec
from parlmesh.training.settings.run import TrainingConfig

from .. import metrics
from ..config import LearnerConfig
from .torchrun import Launcher


class Members(Protocol):
    """The other ranks of a run, to be closed after it."""

    def close(self) -> None:
        """Ends them."""


def processes(training: TrainingConfig) -> int:
    """How many processes train a run with these settings."""
    launcher = Launcher.found()
    if launcher is not None and training.processes not in (0, launcher.size):
        raise ConfigError(
            f"training.processes is {training.processes}, and a launcher started {launcher.size} (WORLD_SIZE);"
            f" it must be 0 or {launcher.size}",
            key="training.processes",
        )
    return launcher.size if launcher is not None else max(1, training.processes)


def check_processes(training: TrainingConfig) -> None:
    """Raises ConfigError when a run cannot be divided among its processes."""
    count = processes(training)
    if count == 1:
        return
    if training.algorithm not in RANKED:
        known = ", ".join(RANKED)
        message = f"training.processes must be 1 for {training.algorithm}, got {count}; {known} can have several"
        raise ConfigError(message, key="training.processes")
    most, named = {
        "ppo": (training.num_envs * training.batch_trajectories, "num_envs x training.batch_trajectories"),
        "dqn": (training.dqn.minibatch_steps, "dqn.minibatch_steps"),
        "sac": (training.sac.minibatch_steps, "sac.minibatch_steps"),
    }[training.algorithm]
    if count > most:
        message = f"training.processes must be at most training.{named}, which is {most}, got {count}"
        raise ConfigError(message, key="training.processes")


def several(
    config: LearnerConfig, policy: PolicySpec, max_policy_lag: int
) -> tuple[Members | None, Callable[[Any], Any]]:
    """The other ranks, and a function that puts them behind a model; None and the identity if one process trains."""
    training = config.training
    size = processes(training)
    if size == 1:
        return None, lambda model: model
    from .rank_processes import Children, Launched
    from .ranked_model import RankedModel, RankedQModel, RankedSacModel

    launcher, seconds = Launcher.found(), training.process_seconds
    children = Children(size, config.run_dir / "ranks", seconds)
    members: Children | Launched = children if launcher is None else Launched(launcher, seconds)
    order = {
        "training": effective(training),
        "policy": policy.to_json(),
        "plugins": list(config.plugins),
        "max_policy_lag": max_policy_lag,
    }
    ranked: dict[str, Callable[..., Any]] = {"ppo": RankedModel, "dqn": RankedQModel, "sac": RankedSacModel}
    return members, lambda model: ranked[training.algorithm](model, members, order, metrics.RANKS_LOST.inc)
