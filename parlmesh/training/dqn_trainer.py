"""DQN updates: fragments go into a replay as n-step transitions; gradient steps follow as often as its rate allows."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from parlmesh.algorithms.dqn import QTerms
from parlmesh.algorithms.n_step import n_step
from parlmesh.algorithms.schedules import scheduled
from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.features import Features
from parlmesh.policies.normaliser import Normaliser
from parlmesh.random_state import pack_random_state, restore_random_state
from parlmesh.telemetry import get_logger
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    EnvironmentSpec,
    Fragment,
)

from .dqn_config import DqnConfig, ReplayConfig
from .q_model import QMinibatch, QModel, QStep
from .replay import PrioritisedReplay, RateLimiter, Replay, Sample, UniformReplay
from .replay.ring import Columns, row_bytes
from .trainer import Update

log = get_logger("parlmesh.learner")

RETURN, DISCOUNT = "return", "discount"
NEXT_OBSERVATION, NEXT_MASK = "next_observation", "next_mask"


class DqnTrainer:
    """Owns values in training. Not thread-safe: one thread updates, others read what it published."""

    def __init__(
        self,
        spec: PolicySpec,
        environment: EnvironmentSpec,
        config: DqnConfig,
        model: QModel,
        rng: np.random.Generator,
    ) -> None:
        self._spec = spec
        self._config = config
        self._model = model
        self._rng = rng
        self._replay = _replay(config.replay, _columns(environment))
        self._limiter = RateLimiter(config.replay.samples_per_insert, config.replay.min_steps)
        self._normaliser = Normaliser(spec.observation_size) if spec.normalised else None
        self._epsilon = config.exploration.start
        self._gradient_steps = 0

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Inserts the fragments' steps, then samples; `progress` in [0, 1] is the used share of the step budget.

        A value that is not finite undoes the update, the insert included.
        """
        parts = [self._transitions(fragment.columns) for fragment in fragments]
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        steps = len(rows[ACTION])
        if not all(np.isfinite(rows[name]).all() for name in (OBSERVATION, RETURN, NEXT_OBSERVATION)):
            return Update(steps, {}, applied=False)
        before = self._without_replay()
        held = len(self._replay)
        self._replay.begin()
        self._replay.add(rows)
        self._limiter.insert(steps)
        learning_rate, importance = self._rates(progress)
        done = self._gradient(learning_rate, importance)
        if not all(math.isfinite(step.norm) and math.isfinite(step.terms.loss) for step in done):
            self._replay.undo()
            self._restore_without_replay(before)
            return Update(steps, {}, applied=False)
        if self._normaliser is not None:
            self._normaliser.add(rows[OBSERVATION].reshape(steps, -1))
        self._epsilon = self._config.exploration.epsilon(progress)
        metrics = {
            "policy/epsilon": self._epsilon,
            "replay/steps": float(len(self._replay)),
            "replay/evicted_steps": float(held + steps - len(self._replay)),
            "replay/sampled_steps": float(len(done) * self._config.minibatch_steps),
            "replay/samples_per_insert": self._limiter.ratio,
            "update/gradient_steps": float(len(done)),
            "update/learning_rate": learning_rate,
        }
        if done:
            named = dict(zip(QTerms._fields, np.mean([step.terms for step in done], axis=0).tolist(), strict=True))
            metrics |= {
                "loss/total": named["loss"],
                "value/mean": named["value"],
                "value/error": named["error"],
                "update/gradient_norm": float(np.mean([step.norm for step in done])),
            }
        return Update(steps, metrics, applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        epsilon = {"policy.epsilon": np.array([self._epsilon], np.float32)}
        return pack_policy(self._spec, {**self._model.policy_weights(), **self._statistics(), **epsilon})

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update; the replay where the configuration says so."""
        replay = self._replay.tensors() if self._config.replay.checkpointed else {}
        return {**self._without_replay(), **replay}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`. Without its steps the replay starts empty, and learning waits for it to fill."""
        self._restore_without_replay(tensors)
        if "replay.inserted" in tensors:
            self._replay.restore(tensors)
        else:
            self._limiter = RateLimiter(self._config.replay.samples_per_insert, self._config.replay.min_steps)

    def _gradient(self, learning_rate: float, importance: float) -> list[QStep]:
        """As many gradient steps as the rate allows; ends early at a value that is not finite."""
        features = Features(self._spec, self._statistics())
        done: list[QStep] = []
        for _ in range(self._limiter.allowed // self._config.minibatch_steps):
            sample = self._replay.sample(self._config.minibatch_steps, importance, self._rng)
            self._limiter.sample(self._config.minibatch_steps)
            step = self._model.step(_minibatch(sample, features), learning_rate)
            done.append(step)
            if not math.isfinite(step.norm):
                break
            self._replay.learnt(sample.slots, step.errors)
            self._gradient_steps += 1
            if self._gradient_steps % self._config.target_interval == 0:
                self._model.follow(self._config.target_rate)
        return done

    def _transitions(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """The valid steps of a fragment, each with what its target needs."""
        config, valid = self._config, columns[VALID]
        rewards = columns[REWARD] * np.float32(config.reward_scale)
        found = n_step(rewards, columns[TERMINATED], columns[TRUNCATED], steps=config.n_step, discount=config.discount)
        times, environments = np.nonzero(valid)
        following = found.rows[times, environments], environments
        observations = columns[OBSERVATION]
        rows = {
            OBSERVATION: observations[times, environments],
            ACTION: columns[ACTION][times, environments],
            RETURN: found.returns[times, environments],
            DISCOUNT: found.discounts[times, environments],
            NEXT_OBSERVATION: observations[following],
        }
        return {**rows, NEXT_MASK: columns[ACTION_MASK][following]} if ACTION_MASK in columns else rows

    def _rates(self, progress: float) -> tuple[float, float]:
        config = self._config
        fraction = scheduled(progress, 1.0, config.final_learning_rate_fraction)
        importance = scheduled(progress, config.replay.importance_start, config.replay.importance_final)
        return config.learning_rate * fraction, importance

    def _without_replay(self) -> dict[str, Array]:
        return {
            **self._model.tensors(),
            **(self._normaliser.tensors() if self._normaliser is not None else {}),
            **self._limiter.tensors(),
            "epsilon": np.array([self._epsilon]),
            "gradient_steps": np.array([self._gradient_steps], np.int64),
            "rng": pack_random_state(self._rng),
        }

    def _restore_without_replay(self, tensors: Mapping[str, Array]) -> None:
        self._model.restore(tensors)
        if self._normaliser is not None:
            self._normaliser.restore(tensors)
        self._limiter.restore(tensors)
        self._epsilon = float(tensors["epsilon"][0])
        self._gradient_steps = int(tensors["gradient_steps"][0])
        restore_random_state(self._rng, tensors["rng"])

    def _statistics(self) -> dict[str, Array]:
        return self._normaliser.weights() if self._normaliser is not None else {}


def _columns(environment: EnvironmentSpec) -> Columns:
    observation = environment.observation_dtype, environment.observation_shape
    columns = {
        OBSERVATION: observation,
        ACTION: (environment.action.dtype, environment.action.shape),
        RETURN: ("float32", ()),
        DISCOUNT: ("float32", ()),
        NEXT_OBSERVATION: observation,
    }
    return {**columns, NEXT_MASK: ("bool", (environment.action.outputs,))} if environment.masked else columns


def _replay(config: ReplayConfig, columns: Columns) -> Replay:
    capacity = min(config.capacity_steps, config.capacity_bytes // row_bytes(columns))
    if capacity < config.min_steps:
        raise ConfigError(
            f"training.dqn.replay has room for {capacity} steps of {row_bytes(columns)} bytes; "
            f"min_steps must be at most that, got {config.min_steps}"
        )
    if capacity < config.capacity_steps:
        size, asked = row_bytes(columns), config.capacity_steps
        limit = f"training.dqn.replay.capacity_bytes {config.capacity_bytes}"
        log.warning("replay_shortened", steps=capacity, capacity_steps=asked, bytes_per_step=size, limit=limit)
    if config.kind == "prioritised":
        return PrioritisedReplay(columns, capacity, exponent=config.priority_exponent)
    return UniformReplay(columns, capacity)


def _minibatch(sample: Sample, features: Features) -> QMinibatch:
    rows = sample.rows
    return QMinibatch(
        features=features(rows[OBSERVATION]),
        actions=rows[ACTION],
        returns=rows[RETURN],
        discounts=rows[DISCOUNT],
        next_features=features(rows[NEXT_OBSERVATION]),
        next_masks=rows.get(NEXT_MASK),
        weights=sample.weights,
    )
