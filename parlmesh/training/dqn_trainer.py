"""DQN updates: fragments go into a replay as n-step transitions; gradient steps follow as often as its rate allows."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from parlmesh.algorithms.dqn import QTerms
from parlmesh.algorithms.n_step import n_step
from parlmesh.algorithms.schedules import scheduled
from parlmesh.errors import ConfigError
from parlmesh.masks import unpack_mask
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
from .replay import Frames, PrioritisedReplay, RateLimiter, Replay, Sample, UniformReplay
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
        *,
        stacked: int = 1,
    ) -> None:
        """`stacked` images make an observation, as far as that is known; what they share is kept once."""
        self._spec = spec
        self._config = config
        self._model = model
        self._rng = rng
        self._frames, room = None, config.replay
        if len(environment.observation_shape) == 3 and not spec.normalised:
            self._frames, room = _frames(config.replay, environment, stacked)
        self._replay = _replay(room, _columns(environment, numbered=self._frames is not None))
        self._limiter = RateLimiter(config.replay.samples_per_insert, config.replay.min_steps)
        self._normaliser = Normaliser(spec.observation_size) if spec.normalised else None
        self._epsilon = config.exploration.start
        self._gradient_steps = 0

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
        if not all(math.isfinite(step.norm) and math.isfinite(step.terms.loss) for step in done):
            self._undo()
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
            self._limiter = RateLimiter(self._config.replay.samples_per_insert, self._config.replay.min_steps)

    def _gradient(self, learning_rate: float, importance: float) -> list[QStep]:
        """As many gradient steps as the rate allows; ends early at a value that is not finite."""
        features = Features(self._spec, self._statistics())
        done: list[QStep] = []
        for _ in range(self._limiter.allowed // self._config.minibatch_steps):
            sample = self._replay.sample(self._config.minibatch_steps, importance, self._rng)
            self._limiter.sample(self._config.minibatch_steps)
            step = self._model.step(self._minibatch(sample, features), learning_rate)
            done.append(step)
            if not math.isfinite(step.norm):
                break
            self._replay.learnt(sample.slots, step.errors)
            self._gradient_steps += 1
            if self._gradient_steps % self._config.target_interval == 0:
                self._model.follow(self._config.target_rate)
        return done

    def _rows(self, fragments: Sequence[Fragment]) -> dict[str, Array]:
        """Steps for the replay; their images are put among the frames."""
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
        if ACTION_MASK not in columns:
            return rows
        return {**rows, NEXT_MASK: unpack_mask(columns[ACTION_MASK][following], self._spec.action.outputs)}

    def _minibatch(self, sample: Sample, features: Features) -> QMinibatch:
        rows = sample.rows
        seen, following = rows[OBSERVATION], rows[NEXT_OBSERVATION]
        if self._frames is not None:
            seen, following = self._frames.read(seen), self._frames.read(following)
        return QMinibatch(
            features=features(seen),
            actions=rows[ACTION],
            returns=rows[RETURN],
            discounts=rows[DISCOUNT],
            next_features=features(following),
            next_masks=rows.get(NEXT_MASK),
            weights=sample.weights,
        )

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


def _finite(fragment: Fragment) -> bool:
    """Of the steps that count, and of what follows them."""
    valid, seen = fragment.columns[VALID], fragment.columns[OBSERVATION]
    return bool(np.isfinite(fragment.columns[REWARD][valid]).all()) and (
        seen.dtype.kind != "f" or bool(np.isfinite(seen).all())
    )


def _columns(environment: EnvironmentSpec, *, numbered: bool = False) -> Columns:
    """Of a step; `numbered` images are the numbers of their planes."""
    shape = environment.observation_shape
    observation = ("int64", shape[:1]) if numbered else (environment.observation_dtype, shape)
    columns = {
        OBSERVATION: observation,
        ACTION: (environment.action.dtype, environment.action.shape),
        RETURN: ("float32", ()),
        DISCOUNT: ("float32", ()),
        NEXT_OBSERVATION: observation,
    }
    return {**columns, NEXT_MASK: ("bool", (environment.action.outputs,))} if environment.masked else columns


def _frames(config: ReplayConfig, environment: EnvironmentSpec, stacked: int) -> tuple[Frames, ReplayConfig]:
    """Room for the images of a replay, and the steps that are kept beside them, which name images by number."""
    shape, dtype = environment.observation_shape, environment.observation_dtype
    planes, plane_bytes = shape[0], np.dtype(dtype).itemsize * math.prod(shape[1:])
    row, limit = row_bytes(_columns(environment, numbered=True)), config.capacity_bytes
    shift = planes // stacked if stacked > 1 else 1
    most = min(config.capacity_steps, limit // (row + shift * plane_bytes))
    capacity = min((limit - most * row) // plane_bytes, 2 * most * planes)
    # Of images whose stack is not known none may be shared; and every fragment starts with a whole stack.
    a_step = 1.1 * (shift if stacked > 1 else planes)
    steps = min(most, int(capacity / a_step))
    _check_room(config, steps, round(row + a_step * plane_bytes))
    return Frames(shape, dtype, capacity, shift=shift), config.model_copy(update={"capacity_steps": most})


def _check_room(config: ReplayConfig, steps: int, step_bytes: int) -> None:
    """Says how many steps fit where they are fewer than asked for; ConfigError when they are too few to begin."""
    if steps < config.min_steps:
        raise ConfigError(
            f"training.dqn.replay has room for {steps} steps of {step_bytes} bytes; "
            f"min_steps must be at most that, got {config.min_steps}"
        )
    if steps < config.capacity_steps:
        limit = f"training.dqn.replay.capacity_bytes {config.capacity_bytes}"
        asked = config.capacity_steps
        log.warning("replay_shortened", steps=steps, capacity_steps=asked, bytes_per_step=step_bytes, limit=limit)


def _replay(config: ReplayConfig, columns: Columns) -> Replay:
    capacity = min(config.capacity_steps, config.capacity_bytes // row_bytes(columns))
    _check_room(config, capacity, row_bytes(columns))
    if config.kind == "prioritised":
        return PrioritisedReplay(columns, capacity, exponent=config.priority_exponent)
    return UniformReplay(columns, capacity)
