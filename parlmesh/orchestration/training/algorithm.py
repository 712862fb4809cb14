"""The algorithm `parl`: PPO with an orchestrator's reward, whose auxiliary terms fade during training.

Environments give r_perf. The last observation of an episode contains the inputs of the auxiliary terms (sub-agents
created, sub-tasks assigned and completed), which are added here, where the training's progress is known.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parlmesh.config import Config
from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec
from parlmesh.training.numpy_model import DenseModel, Model
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.settings.ppo import PpoConfig
from parlmesh.training.trainer import Update
from parlmesh.types import OBSERVATION, REWARD, TERMINATED, VALID, Array, EnvironmentSpec, Fragment

from ..jobs.observation import ENDS, FIELDS, counts
from ..jobs.simulation import SUCCESS_COVERAGE
from ..reward import PARLReward
from .config import ParlConfig, RewardConfig
from .serial_prior import clone_single_agent

_RESOLUTION = 1_000_000


class ParlTrainer(PpoTrainer):
    """PPO on r_perf plus the annealed auxiliary terms."""

    def __init__(
        self, policy: PolicySpec, environment: EnvironmentSpec, settings: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        config = settings_of(ParlConfig, settings)
        if len(environment.observation_shape) != 1 or environment.observation_shape[0] < len(ENDS):
            shape = list(environment.observation_shape)
            raise ConfigError(
                "algorithm parl needs an orchestrator's environment, such as parlmesh/Orchestration-v0, whose"
                f" observations end with {', '.join(ENDS)}; got the shape {shape}"
            )
        if config.prior.updates and environment.observation_shape != (len(FIELDS),):
            raise ConfigError("prior.updates must be 0: only parlmesh/Orchestration-v0 has examples to clone")
        model = model_for(policy, config.ppo, rng)
        if config.prior.updates:
            clone_single_agent(model, config.prior, rng, assigning=config.assigning)
        super().__init__(policy, config.ppo, model, rng)
        self._terms = Terms(config.reward)

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """PPO's update, on the orchestrator's reward."""
        rewarded, about = self._terms.add(fragments, progress)
        update = super().update(rewarded, progress)
        return Update(update.steps, {**update.metrics, **about}, applied=update.applied)


class Terms:
    """The reward of whole episodes, and their metrics."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self.reward = PARLReward(
            lambda1_init=config.lambda1,
            lambda2_init=config.lambda2,
            total_training_steps=_RESOLUTION,
            form=config.form,
            schedule=config.schedule,
        )

    def add(self, fragments: Sequence[Fragment], progress: float) -> tuple[list[Fragment], dict[str, float]]:
        """The fragments with the orchestrator's reward at the end of each episode, and the metrics."""
        step = progress / self._config.anneal_share * _RESOLUTION
        lambdas = {
            "orchestration/lambda1": self.reward.anneal_lambda1(step),
            "orchestration/lambda2": self.reward.anneal_lambda2(step),
        }
        rewarded, ends = [], []
        for fragment in fragments:
            columns = dict(fragment.columns)
            ended = columns[TERMINATED] & columns[VALID]
            last = columns[OBSERVATION][1:][ended]
            rewards = columns[REWARD].copy()
            if len(last):
                rewards[ended] = self._total(last, rewards[ended], step)
            rewarded.append(Fragment({**columns, REWARD: rewards}, fragment.episodes))
            ends.append(last)
        return rewarded, {**lambdas, **_about(np.concatenate(ends))}

    def _total(self, last: Array, r_perf: Array, step: float) -> Array:
        found = counts(last)
        terms = self.reward.compute_full_reward(
            num_subagents=found["created"],
            quality=r_perf,
            success=1.0,
            training_step=step,
            max_subagents=self._config.cap,
            completed_subtasks=np.minimum(found["completed"], found["assigned"]),
            assigned_subtasks=found["assigned"],
        )
        total: Array = terms["total_reward"]
        if self._config.only_where_wide:
            total = np.where(found["widest"] > 1, total, terms["r_perf"])
        return total


def _about(last: Array) -> dict[str, float]:
    if not len(last):
        return {}
    found = counts(last)
    success = found["coverage"] >= SUCCESS_COVERAGE
    rate = found["completed"].sum() / max(1, found["assigned"].sum())
    return {
        "orchestration/critical_steps": float(found["critical"].mean()),
        "orchestration/success": float(success.mean()),
        "orchestration/coverage": float(found["coverage"].mean()),
        "orchestration/sub_agents": float(found["created"].mean()),
        "orchestration/finish_rate": float(rate),
    }


def settings_of(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """The configuration from `training.custom`; automatic targets become vtrace, which tolerates any lag."""
    assert issubclass(kind, Config)
    try:
        config = kind.model_validate(dict(settings))
    except ValueError as error:
        raise ConfigError(f"training.custom: {_first(error)}") from error
    ppo: PpoConfig = config.ppo  # type: ignore[attr-defined]
    if ppo.targets == "auto":
        ppo = ppo.model_copy(update={"targets": "vtrace"})
    return config.model_copy(update={"ppo": ppo})


def model_for(policy: PolicySpec, config: PpoConfig, rng: np.random.Generator) -> Model:
    """A numpy model for perceptrons, a torch model for everything else."""
    if policy.network == "mlp":
        return DenseModel(policy, config, rng)
    from parlmesh.training.torch_model import TorchModel

    return TorchModel(policy, config, rng)


def _first(error: ValueError) -> str:
    """The first validation error, in one line."""
    errors: list[dict[str, Any]] = getattr(error, "errors", list)()
    if not errors:
        return str(error)
    where = ".".join(str(part) for part in errors[0]["loc"])
    return f"{where}: {errors[0]['msg']}, got {errors[0].get('input')!r}"
