"""Updates from a replay, for any algorithm: fragments are added as n-step transitions; gradient steps follow as often
as its rate allows. Each algorithm defines its gradient step and how much its policy explores."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from parlmesh.action_masks import unpack_mask
from parlmesh.algorithms.n_step import n_step
from parlmesh.algorithms.random_state import pack_random_state, restore_random_state
from parlmesh.algorithms.schedules import scheduled
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.normaliser import Normaliser
from parlmesh.policies.observation_features import Features
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

from .replay.capacity import DISCOUNT, NEXT_MASK, NEXT_OBSERVATION, RETURN, columns_of, frames_for, replay_for
from .replay.config import ReplayConfig
from .replay.rate_limiter import RateLimiter
from .replay.replay import Sample
from .trainer import Update


class Minibatch(NamedTuple):
    """B steps: features [B, ...], masks [B, A], actions in the environment's form, all others [B]. Without masks, every
    action is allowed; without weights, all steps count equally."""

    features: Array
    actions: Array
    returns: Array
    discounts: Array
    next_features: Array
    next_masks: Array | None = None
    weights: Array | None = None


class Learnt(NamedTuple):
    """The results of one gradient step: means by the names of their curves, the gradient's norm, the errors [B]."""

    means: Mapping[str, float]
    norm: float
    errors: Array

    @property
    def finite(self) -> bool:
        """Whether all of it is finite."""
        return math.isfinite(self.norm) and all(map(math.isfinite, self.means.values()))


class ReplayedModel(Protocol):
    """Networks and their optimisers."""

    def policy_weights(self) -> dict[str, Array]:
        """A copy of what actors read, without epsilon."""

    def tensors(self) -> dict[str, Array]:
        """Copies of everything that decides the next step."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""


class ReplayedConfig(Protocol):
    """Settings that every algorithm with a replay has."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def final_learning_rate_fraction(self) -> float: ...
    @property
    def minibatch_steps(self) -> int: ...
    @property
    def discount(self) -> float: ...
    @property
    def n_step(self) -> int: ...
    @property
    def reward_scale(self) -> float: ...
    @property
    def replay(self) -> ReplayConfig: ...


class ReplayTrainer(ABC):
    """Owns networks in training. Not thread-safe: one thread updates, others read the published policies."""

    def __init__(
        self,
        spec: PolicySpec,
        environment: EnvironmentSpec,
        settings: ReplayedConfig,
        networks: ReplayedModel,
        rng: np.random.Generator,
        *,
        section: str,
        stacked: int = 1,
    ) -> None:
        """`stacked` images make an observation, if that is known; images that observations share are kept once.
        `section` of `training` holds the settings."""
        self._spec = spec
        self._settings = settings
        self._networks = networks
        self._rng = rng
        where, replay = f"training.{section}.replay", settings.replay
        self._frames, room = None, replay
        if len(environment.observation_shape) == 3 and not spec.normalised:
            self._frames, room = frames_for(where, replay, environment, stacked)
        self._replay = replay_for(where, room, columns_of(environment, numbered=self._frames is not None))
        self._limiter = RateLimiter(replay.samples_per_insert, replay.min_steps)
        self._normaliser = Normaliser(spec.observation_size) if spec.normalised else None
        self._gradient_steps = 0
        self._steps = 0
        self._epsilon = self._explored(0.0)

    @abstractmethod
    def _learn(self, minibatch: Minibatch, learning_rate: float) -> Learnt:
        """One gradient step."""

    @abstractmethod
    def _explored(self, progress: float) -> float:
        """The share of steps with random actions from now on; `_steps` counts the steps taken in so far."""

    def _own_weights(self) -> dict[str, Array]:
        """The data that actors read besides the networks' weights."""
        return {}

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        """Inserts the fragments' steps, then samples; `progress` in [0, 1] is the used share of the step budget.

        A value that is not finite undoes the update, the insert included.
        """
        steps = sum(int(np.count_nonzero(fragment.columns[VALID])) for fragment in fragments)
        if not all(map(_finite, fragments)):
            return Update(steps, {}, applied=False)
        before = self._without_replay()
        held = len(self._replay)
        self._begin()
        rows = self._rows(fragments)
        self._replay.add(rows)
        if self._frames is not None:
            self._replay.forget(self._frames.forgotten())
        self._limiter.insert(steps)
        learning_rate, importance = self._rates(progress)
        done = self._gradient(learning_rate, importance)
        if not all(step.finite for step in done):
            self._undo()
            self._restore_without_replay(before)
            return Update(steps, {}, applied=False)
        if self._normaliser is not None:
            self._normaliser.add(rows[OBSERVATION].reshape(steps, -1))
        self._steps += steps
        self._epsilon = self._explored(progress)
        metrics = {
            "policy/epsilon": self._epsilon,
            "replay/steps": float(len(self._replay)),
            "replay/evicted_steps": float(held + steps - len(self._replay)),
            "replay/sampled_steps": float(len(done) * self._settings.minibatch_steps),
            "replay/samples_per_insert": self._limiter.ratio,
            "update/gradient_steps": float(len(done)),
            "update/learning_rate": learning_rate,
        }
        if done:
            # Not every step has every mean: an actor may be trained less often than its critics.
            for name in dict.fromkeys(name for step in done for name in step.means):
                metrics[name] = float(np.mean([step.means[name] for step in done if name in step.means]))
            metrics["update/gradient_norm"] = float(np.mean([step.norm for step in done]))
        return Update(steps, metrics, applied=True)

    def policy_blob(self) -> bytes:
        """The policy as actors read it."""
        epsilon = {"policy.epsilon": np.array([self._epsilon], np.float32)}
        return pack_policy(
            self._spec, {**self._networks.policy_weights(), **self._statistics(), **self._own_weights(), **epsilon}
        )

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next update, with the replay if the configuration says so."""
        replay = self._replay.tensors() if self._settings.replay.checkpointed else {}
        frames = self._frames.tensors() if self._frames is not None and replay else {}
        return {**self._without_replay(), **replay, **frames}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`. Without its steps the replay starts empty, and learning waits for it to fill."""
        self._restore_without_replay(tensors)
        if "replay.inserted" in tensors:
            self._replay.restore(tensors)
            if self._frames is not None:
                self._frames.restore(tensors)
        else:
            self._limiter = RateLimiter(self._settings.replay.samples_per_insert, self._settings.replay.min_steps)

    def _gradient(self, learning_rate: float, importance: float) -> list[Learnt]:
        """As many gradient steps as the rate allows; ends early at a value that is not finite."""
        features = Features(self._spec, self._statistics())
        done: list[Learnt] = []
        for _ in range(self._limiter.allowed // self._settings.minibatch_steps):
            sample = self._replay.sample(self._settings.minibatch_steps, importance, self._rng)
            self._limiter.sample(self._settings.minibatch_steps)
            step = self._learn(self._minibatch(sample, features), learning_rate)
            done.append(step)
            if not step.finite:
                break
            self._replay.learnt(sample.slots, step.errors)
            self._gradient_steps += 1
        return done

    def _rows(self, fragments: Sequence[Fragment]) -> dict[str, Array]:
        """Steps for the replay; their images are added to the frames."""
        parts: list[dict[str, Array]] = []
        end = self._replay.inserted
        for columns in (fragment.columns for fragment in fragments):
            end += int(np.count_nonzero(columns[VALID]))
            if self._frames is not None:
                columns = {**columns, OBSERVATION: self._frames.add(columns[OBSERVATION], end)}
            parts.append(self._transitions(columns))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _begin(self) -> None:
        self._replay.begin()
        if self._frames is not None:
            self._frames.begin()

    def _undo(self) -> None:
        self._replay.undo()
        if self._frames is not None:
            self._frames.undo()

    def _transitions(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """The valid steps of a fragment, each with what its target needs."""
        config, valid = self._settings, columns[VALID]
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
        if ACTION_MASK not in columns:
            return rows
        return {**rows, NEXT_MASK: unpack_mask(columns[ACTION_MASK][following], self._spec.action.outputs)}

    def _minibatch(self, sample: Sample, features: Features) -> Minibatch:
        rows = sample.rows
        seen, following = rows[OBSERVATION], rows[NEXT_OBSERVATION]
        if self._frames is not None:
            seen, following = self._frames.read(seen), self._frames.read(following)
        return Minibatch(
            features=features(seen),
            actions=rows[ACTION],
            returns=rows[RETURN],
            discounts=rows[DISCOUNT],
            next_features=features(following),
            next_masks=rows.get(NEXT_MASK),
            weights=sample.weights,
        )

    def _rates(self, progress: float) -> tuple[float, float]:
        config = self._settings
        fraction = scheduled(progress, 1.0, config.final_learning_rate_fraction)
        importance = scheduled(progress, config.replay.importance_start, config.replay.importance_final)
        return config.learning_rate * fraction, importance

    def _without_replay(self) -> dict[str, Array]:
        return {
            **self._networks.tensors(),
            **(self._normaliser.tensors() if self._normaliser is not None else {}),
            **self._limiter.tensors(),
            "epsilon": np.array([self._epsilon]),
            "gradient_steps": np.array([self._gradient_steps], np.int64),
            "steps": np.array([self._steps], np.int64),
            "rng": pack_random_state(self._rng),
        }

    def _restore_without_replay(self, tensors: Mapping[str, Array]) -> None:
        self._networks.restore(tensors)
        if self._normaliser is not None:
            self._normaliser.restore(tensors)
        self._limiter.restore(tensors)
        self._epsilon = float(tensors["epsilon"][0])
        self._gradient_steps = int(tensors["gradient_steps"][0])
        # Older checkpoints do not count them.
        self._steps = int(tensors["steps"][0]) if "steps" in tensors else 0
        restore_random_state(self._rng, tensors["rng"])

    def _statistics(self) -> dict[str, Array]:
        return self._normaliser.weights() if self._normaliser is not None else {}


def _finite(fragment: Fragment) -> bool:
    """Whether the rewards of valid steps and all observations are finite."""
    valid, seen = fragment.columns[VALID], fragment.columns[OBSERVATION]
    return bool(np.isfinite(fragment.columns[REWARD][valid]).all()) and (
        seen.dtype.kind != "f" or bool(np.isfinite(seen).all())
    )
