"""PPO updates on batches of trajectories: from columns to minibatches, with all state that decides the next one."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from parlmesh.algorithms.gae import gae
from parlmesh.algorithms.group_relative import group_relative
from parlmesh.algorithms.importance_weights import importance_weights
from parlmesh.algorithms.ppo import PpoTerms
from parlmesh.algorithms.random_state import pack_random_state, restore_random_state
from parlmesh.algorithms.schedules import scheduled
from parlmesh.algorithms.vtrace import vtrace
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.normaliser import Normaliser
from parlmesh.policies.observation_features import Features
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    BEFORE,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    STATE,
    TARGET_ACTION,
    TARGET_CHANCE,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
)

from .numpy_model import Memory, Minibatch, Model, Steps
from .reward_scale import RewardScale
from .settings.ppo import PpoConfig
from .trainer import Update

# Targets that need to know how much likelier steps are now than when they were taken.
_AGED = ("weighted", "vtrace")


class PpoTrainer:
    """Owns a policy in training. Not thread-safe: one thread updates, others read the published policies."""

    def __init__(self, spec: PolicySpec, config: PpoConfig, model: Model, rng: np.random.Generator) -> None:
        self._spec = spec
        self._config = config
        self._model = model
        self._rng = rng
        self._normaliser = Normaliser(spec.observation_size) if spec.normalised else None
        self._rewards = RewardScale.of(config)

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Runs epochs of minibatches over whole fragments; `progress` in [0, 1] is the used share of the step budget.

        An epoch is the last if its mean KL exceeds `target_kl`. A value that is not finite undoes the update.
        """
        before = self.tensors()
        columns = {name: _join(fragments, name) for name in fragments[0].columns}
        if self._rewards is not None:
            self._rewards.add(columns)
            columns[REWARD] = self._rewards(columns[REWARD])
        batch = self._prepare(columns, _discount(self._config, progress))
        steps = int(np.count_nonzero(columns[VALID]))
        sizes = _step_sizes(self._config, progress)
        terms: list[PpoTerms] = []
        norms: list[float] = []
        epochs = 0
        for _ in range(self._config.epochs):
            epochs += 1
            first = len(terms)
            for minibatch in self._minibatches(batch):
                term, norm = self._model.step(minibatch, sizes)
                terms.append(term)
                norms.append(norm)
            if not all(math.isfinite(value) for value in [*norms[first:], *(term.total for term in terms[first:])]):
                self.restore(before)
                return Update(steps, {}, applied=False)
            limit = self._config.target_kl
            if limit is not None and sum(term.approx_kl for term in terms[first:]) > limit * (len(terms) - first):
                break
        if self._normaliser is not None:
            # Only now, because this batch was collected and trained on with the statistics of its own version.
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
            "update/learning_rate": sizes.learning_rate,
            "value/mean_return": float(batch.returns.mean()),
        }
        return Update(steps, metrics, applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        return pack_policy(self._spec, {**self._model.policy_weights(), **self._statistics()})

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update: the model, its optimiser, the statistics, the random state."""
        found = {**self._model.tensors(), "rng": pack_random_state(self._rng)}
        for statistics in self._learnt():
            found |= statistics.tensors()
        return found

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._model.restore(tensors)
        for statistics in self._learnt():
            statistics.restore(tensors)
        restore_random_state(self._rng, tensors["rng"])

    def _prepare(self, columns: Mapping[str, Array], discount: float) -> Minibatch:
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
            target_actions=columns.get(TARGET_ACTION),
            target_chances=columns.get(TARGET_CHANCE),
            places=np.arange((rows - 1) * width).reshape(rows - 1, width) if self._model.placed else None,
        )
        if memory is not None:
            batch = batch._replace(valid=valid, memory=Memory(memory.starts[:-1], memory.state))
        if self._config.targets in _AGED:
            values, log_probs = self._model.judged(features, memory, batch)
            batch = batch._replace(log_probs=log_probs)
        else:
            values = self._model.values(features, memory)
        batch = self._targeted(batch, columns, values, discount)
        return batch.rows(valid) if memory is None else batch

    def _targeted(self, batch: Minibatch, columns: Mapping[str, Array], values: Array, discount: float) -> Minibatch:
        """Adds advantages and value targets [T, E].

        GAE takes the policy that acted for the one in training. `weighted` and `vtrace` tell three policies apart
        (Hilton et al. 2021, arXiv:2110.00641): a step counts as much as the policy at the start of the update would
        take it, compared with the policy that acted, and the clip keeps the trained policy near the one at the start.
        V-trace also cuts the weight of later steps that the policy would now take less often; at lag 1 that costs more
        than it mends. docs/decisions/0021 has the figures.
        """
        config, valid, smoothing = self._config, columns[VALID], self._config.smoothing
        flags = columns[TERMINATED], columns[TRUNCATED]
        rewards = columns[REWARD]
        weights: Array | None = None
        if config.value_clip is not None:
            batch = batch._replace(values=values[:-1])
        log_ratios = batch.log_probs - columns[LOG_PROB]
        if config.targets in _AGED:
            weights = importance_weights(log_ratios, valid)
        if config.targets == "vtrace":
            advantages, returns = vtrace(log_ratios, rewards, values, *flags, discount=discount, smoothing=smoothing)
        elif config.targets == "group":
            whole, advantages, returns = group_relative(
                columns[OBSERVATION][:-1], rewards, valid, *flags, discount=discount
            )
            # Parts of episodes that start before the batch or end after it cannot be compared.
            weights = whole.astype(np.float32)
        else:
            advantages, returns = gae(rewards, values, *flags, discount=discount, smoothing=smoothing)
        if config.normalise_advantages == "minibatch":
            return batch._replace(advantages=advantages, returns=returns, weights=weights)
        if config.normalise_advantages:
            advantages = _normalised(advantages, valid)
        # Weighted last: a step that the policy would no longer take counts nothing, whatever the mean of the others.
        return batch._replace(advantages=advantages if weights is None else weights * advantages, returns=returns)

    def _minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        for minibatch in self._divided(batch):
            if self._config.normalise_advantages != "minibatch":
                yield minibatch
                continue
            every = np.ones(minibatch.advantages.shape, np.bool_)
            advantages = _normalised(minibatch.advantages, every if minibatch.valid is None else minibatch.valid)
            weights = minibatch.weights
            yield minibatch._replace(advantages=advantages if weights is None else weights * advantages)

    def _divided(self, batch: Minibatch) -> Iterator[Minibatch]:
        """Steps in random order; with memory, whole environments in random order."""
        if batch.memory is None:
            order = self._rng.permutation(len(batch.actions))
            size = _even_part(len(order), self._config.minibatch_steps)
            starts = range(0, len(order), size)
            if batch.features.ndim > 2:
                # Images are copied when their turn comes.
                yield from (batch.rows(order[start : start + size]) for start in starts)
                return
            shuffled = batch.rows(order)
            yield from (shuffled.rows(slice(start, start + size)) for start in starts)
            return
        steps, envs = batch.actions.shape[:2]
        order = self._rng.permutation(envs)
        size = _even_part(envs, max(1, self._config.minibatch_steps // steps))
        for start in range(0, envs, size):
            yield batch.environments(order[start : start + size])

    def _learnt(self) -> Iterator[Normaliser | RewardScale]:
        yield from (each for each in (self._normaliser, self._rewards) if each is not None)

    def _statistics(self) -> dict[str, Array]:
        return self._normaliser.weights() if self._normaliser is not None else {}


def _step_sizes(config: PpoConfig, progress: float) -> Steps:
    return Steps(
        *(
            scheduled(progress, start, start * fraction)
            for start, fraction in (
                (config.learning_rate, config.final_learning_rate_fraction),
                (config.clip, config.final_clip_fraction),
                (config.entropy_coefficient, config.final_entropy_fraction),
            )
        )
    )


def _discount(config: PpoConfig, progress: float) -> float:
    final = config.discount if config.final_discount is None else config.final_discount
    return scheduled(progress, config.discount, final)


def _normalised(advantages: Array, valid: Array) -> Array:
    chosen = advantages[valid]
    normalised: Array = (advantages - chosen.mean()) / (chosen.std() + 1e-8)
    return normalised


def _memory(columns: Mapping[str, Array]) -> Memory:
    """An episode starts on the row after the step that reset its environment."""
    starts = np.zeros(columns[OBSERVATION].shape[:2], np.bool_)
    starts[1:] = ~columns[VALID]
    return Memory(starts, columns[STATE])


def _join(fragments: Sequence[Fragment], name: str) -> Array:
    if len(fragments) == 1:
        return fragments[0].columns[name]
    axis = 0 if name in BEFORE else 1
    return np.concatenate([fragment.columns[name] for fragment in fragments], axis=axis)


def _even_part(count: int, wanted: int) -> int:
    """The size nearest to `wanted` that leaves no small remainder."""
    return math.ceil(count / max(1, round(count / wanted)))
