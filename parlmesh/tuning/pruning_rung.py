"""One part of a trial: training from one number of steps to another, then an evaluation. Independent of Optuna."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.errors import FailedPrecondition
from parlmesh.plugins import load_plugins
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, evaluate, evaluation_seed
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import Array


@dataclass(frozen=True, slots=True)
class Rung:
    """The result of one part of a trial."""

    value: float
    """Mean return of the evaluation."""
    steps: int
    tensors: Mapping[str, Array]
    """The state that the next part needs."""


def train_rung(
    config: TrainingConfig,
    plugins: tuple[str, ...],
    tensors: Mapping[str, Array],
    start: int,
    until: int,
    check: Callable[[], None] = lambda: None,
) -> Rung:
    """Continues training from `start` steps. Each part has new environments, seeded by the trial's seed and `start`."""
    algorithms = load_plugins(plugins).algorithms
    environment = config.environment.model_dump()
    spec = environment_spec(environment)
    trainer = trainer_for(config, policy_for(config, spec), spec, algorithms, max_policy_lag=0)
    if tensors:
        trainer.restore(tensors)
    seed = np.random.SeedSequence([config.seed, start])
    collector = Collector(environment, config.num_envs, seed, reward_discount=config.reward_discount)
    steps, bad = start, 0
    try:
        while steps < until:
            check()
            policy = load_policy(trainer.policy_blob())
            fragments = [collector.collect(policy, config.trajectory_steps) for _ in range(config.batch_trajectories)]
            update = trainer.update(fragments, min(1.0, steps / config.step_budget))
            steps += max(update.steps, 1)
            bad = 0 if update.applied else bad + 1
            if bad >= config.max_bad_updates:
                raise FailedPrecondition(f"{bad} updates in a row were not finite", reason="DIVERGED")
    finally:
        collector.close()
    value = _evaluated(config, environment, trainer.policy_blob(), steps, check)
    return Rung(value, steps, {name: np.asarray(array) for name, array in trainer.tensors().items()})


def _evaluated(
    config: TrainingConfig, environment: Mapping[str, Any], blob: bytes, steps: int, check: Callable[[], None]
) -> float:
    check()
    returns = evaluate(
        load_policy(blob),
        environment,
        config.evaluation_episodes,
        evaluation_seed(config.seed, steps),
        sampled=config.evaluation_play == "sampled",
    )
    return float(returns.mean())
