"""PPO updates on batches of trajectories: from columns to minibatches, with all state that decides the next one."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parlmesh.algorithms.gae import gae
from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.algorithms.vtrace import vtrace
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.features import Features
from parlmesh.policies.normaliser import Normaliser
from parlmesh.random_state import pack_random_state, restore_random_state
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    STATE,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
)

from .model import Memory, Minibatch, Model
from .ppo_config import PpoConfig
from .reward_scale import RewardScale
from .trainer import Update


class PpoTrainer:
    """Owns a policy in training. Not thread-safe: one thread updates, others read what it published."""

    def __init__(self, spec: PolicySpec, config: PpoConfig, model: Model, rng: np.random.Generator) -> None:
        self._spec = spec
        self._config = config
        self._model = model
        self._rng = rng
        self._normaliser = Normaliser(spec.observation_size) if spec.normalised else None
        self._rewards = RewardScale(config.reward_scale, config.discount, normalise=config.normalise_rewards)

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Some epochs of minibatches over whole fragments; `progress` in [0, 1] is the used share of the step budget.

        An epoch is the last when its mean KL exceeds `target_kl`. A value that is not finite undoes the update.
        """
        before = self.tensors()
        columns = {name: _join(fragments, name) for name in fragments[0].columns}
        self._rewards.add(columns)
        batch = self._prepare(columns)
        steps = int(np.count_nonzero(columns[VALID]))
        remaining = 1.0 - min(max(progress, 0.0), 1.0)
        fraction = self._config.final_learning_rate_fraction
        learning_rate = self._config.learning_rate * (fraction + (1.0 - fraction) * remaining)
        terms: list[PpoTerms] = []
        norms: list[float] = []
        epochs = 0
        for _ in range(self._config.epochs):
            epochs += 1
            first = len(terms)
            for minibatch in self._minibatches(batch):
                term, norm = self._model.step(minibatch, learning_rate)
                terms.append(term)
                norms.append(norm)
            if not all(math.isfinite(value) for value in [*norms[first:], *(term.total for term in terms[first:])]):
                self.restore(before)
                return Update(steps, {}, applied=False)
            if sum(term.approx_kl for term in terms[first:]) > self._config.target_kl * (len(terms) - first):
                break
        if self._normaliser is not None:
            # Only now: this batch was seen, and is trained on, through the statistics of its own version.
            self._normaliser.add(columns[OBSERVATION][:-1][columns[VALID]].reshape(steps, -1))
        named = dict(zip(PpoTerms._fields, np.mean(terms, axis=0).tolist(), strict=True))
        metrics = {
            "loss/total": named["total"],
            "loss/policy": named["policy"],
            "loss/value": named["value"],
            "policy/entropy": named["entropy"],
            "policy/approx_kl": named["approx_kl"],
            "policy/clip_fraction": named["clip_fraction"],
            "update/epochs": float(epochs),
            "update/gradient_norm": float(np.mean(norms)),
            "update/learning_rate": learning_rate,
            "value/mean_return": float(batch.returns.mean()),
        }
        return Update(steps, metrics, applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        return pack_policy(self._spec, {**self._model.policy_weights(), **self._statistics()})

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update: the model, its optimiser, the statistics, the random state."""
        statistics = self._normaliser.tensors() if self._normaliser is not None else {}
        statistics |= self._rewards.tensors()
        return {**self._model.tensors(), **statistics, "rng": pack_random_state(self._rng)}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._model.restore(tensors)
        if self._normaliser is not None:
            self._normaliser.restore(tensors)
        self._rewards.restore(tensors)
        restore_random_state(self._rng, tensors["rng"])

    def _prepare(self, columns: Mapping[str, Array]) -> Minibatch:
        """The whole batch as one minibatch: flat without memory, [T, E, ...] with it."""
        observations, valid = columns[OBSERVATION], columns[VALID]
        rows, width = observations.shape[:2]
        flat = observations.reshape(rows * width, *observations.shape[2:])
        features = Features(self._spec, self._statistics())(flat)
        features = features.reshape(rows, width, *features.shape[1:])
        memory = _memory(columns) if self._spec.state_size else None
        masks = columns.get(ACTION_MASK)
        batch = Minibatch(
            features=features[:-1],
            actions=columns[ACTION],
            log_probs=columns[LOG_PROB],
            advantages=columns[REWARD],
            returns=columns[REWARD],
            masks=None if masks is None else masks[:-1],
        )
        if memory is not None:
            batch = batch._replace(valid=valid, memory=Memory(memory.starts[:-1], memory.state))
        advantages, returns = self._targets(columns, self._model.values(features, memory), batch)
        if self._config.normalise_advantages:
            chosen = advantages[valid]
            advantages = (advantages - chosen.mean()) / (chosen.std() + 1e-8)
        batch = batch._replace(advantages=advantages, returns=returns)
        return batch.rows(valid) if memory is None else batch

    def _targets(self, columns: Mapping[str, Array], values: Array, batch: Minibatch) -> tuple[Array, Array]:
        """Advantages and value targets [T, E]."""
        config = self._config
        flags = columns[TERMINATED], columns[TRUNCATED]
        rewards = self._rewards(columns[REWARD])
        if config.targets == "gae":
            return gae(rewards, values, *flags, discount=config.discount, smoothing=config.smoothing)
        log_rhos = self._model.log_probs(batch) - columns[LOG_PROB]
        return vtrace(log_rhos, rewards, values, *flags, discount=config.discount, smoothing=config.smoothing)

    def _minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        """Steps in random order; with memory, whole environments in random order."""
        if batch.memory is None:
            order = self._rng.permutation(len(batch.actions))
            shuffled = batch.rows(order)
            size = _even_part(len(order), self._config.minibatch_steps)
            for start in range(0, len(order), size):
                yield shuffled.rows(slice(start, start + size))
            return
        steps, envs = batch.actions.shape[:2]
        order = self._rng.permutation(envs)
        size = _even_part(envs, max(1, self._config.minibatch_steps // steps))
        for start in range(0, envs, size):
            yield batch.environments(order[start : start + size])

    def _statistics(self) -> dict[str, Array]:
        return self._normaliser.weights() if self._normaliser is not None else {}


def _memory(columns: Mapping[str, Array]) -> Memory:
    """An episode starts on the row after the step that reset its environment."""
    starts = np.zeros(columns[OBSERVATION].shape[:2], np.bool_)
    starts[1:] = ~columns[VALID]
    return Memory(starts, columns[STATE])


def _join(fragments: Sequence[Fragment], name: str) -> Array:
    if len(fragments) == 1:
        return fragments[0].columns[name]
    # The state has no time axis: its environments come first.
    axis = 0 if name == STATE else 1
    return np.concatenate([fragment.columns[name] for fragment in fragments], axis=axis)


def _even_part(count: int, wanted: int) -> int:
    """The size next to `wanted` that leaves no small remainder."""
    return math.ceil(count / max(1, round(count / wanted)))
