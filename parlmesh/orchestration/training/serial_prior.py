"""The serial prior: a policy trained on examples to do everything itself, with some random actions."""

from typing import Literal

import numpy as np

from parlmesh.training.numpy_model import Minibatch, Model, Steps
from parlmesh.types import Array

from ..jobs.environment import OrchestrationJobs
from ..jobs.reference_orchestrators import random_action, single_agent
from .config import PriorConfig

_JOBS = 64
_EXAMPLES = 16_384
_MINIBATCH = 512
_LEARNING_RATE = 1e-3


def clone_single_agent(
    model: Model, config: PriorConfig, rng: np.random.Generator, *, assigning: Literal["separate", "automatic"]
) -> None:
    """Takes gradient steps towards a single agent's actions.

    With an advantage of 1 everywhere and the current policy as the behaviour policy, the gradient of PPO's loss is that
    of the examples' log-likelihood; values stay unchanged.
    """
    features, masks, actions = _examples(config.randomness, rng, assigning)
    steps = Steps(learning_rate=_LEARNING_RATE, clip=1e6, entropy_coefficient=0.0)
    for _ in range(config.updates):
        rows = rng.integers(0, len(actions), _MINIBATCH)
        ones = np.ones(_MINIBATCH, np.float32)
        batch = Minibatch(features[rows], actions[rows], ones, ones, ones, masks[rows])
        values, log_probs = model.judged(features[rows][:, None], None, _column(batch))
        model.step(batch._replace(log_probs=log_probs[:, 0], returns=values[:, 0]), steps)


def _column(batch: Minibatch) -> Minibatch:
    """The same steps as if from one environment: [B, 1, ...]."""
    assert batch.masks is not None
    return Minibatch(
        batch.features[:, None],
        batch.actions[:, None],
        batch.log_probs[:, None],
        batch.advantages[:, None],
        batch.returns[:, None],
        batch.masks[:, None],
    )


def _examples(
    randomness: float, rng: np.random.Generator, assigning: Literal["separate", "automatic"]
) -> tuple[Array, Array, Array]:
    """Observations, masks and actions of a single agent with occasional random actions."""
    jobs = OrchestrationJobs(_JOBS, assigning=assigning)
    seen, _ = jobs.reset(seed=int(rng.integers(2**31)))
    rows: list[tuple[Array, Array, Array]] = []
    for _ in range(_EXAMPLES // _JOBS):
        mask = seen["action_mask"].astype(np.bool_)
        at_random = rng.random(_JOBS) < randomness
        actions = np.where(at_random, random_action(mask, rng), single_agent(jobs.world))
        going_on = ~jobs.world.ended
        rows.append((seen["job"][going_on], mask[going_on], actions[going_on]))
        seen, *_ = jobs.step(actions)
    features, masks, chosen = (np.concatenate(column) for column in zip(*rows, strict=True))
    return features, masks, chosen
