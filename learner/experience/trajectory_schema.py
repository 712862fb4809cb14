"""The required shape of a run's trajectories. Every refusal names the column, the value and the allowed values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parlmesh.action_masks import allowed, packed_width
from parlmesh.errors import InvalidInput
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    EARNED,
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
    EnvironmentSpec,
    EpisodeColumns,
    Fragment,
    target_width,
)

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest magnitudes that an honest environment gives and an update can sum over."""

    reward: float = 1e8
    observation: float = 1e9
    log_prob: float = 100.0


class TrajectorySchema:
    """The columns of a run, exactly."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        state_size: int,
        *,
        trajectory_steps: int,
        num_envs: int,
        earned: bool = False,
        bounded_actions: bool = False,
        searched: bool = False,
        bounds: Bounds = Bounds(),  # noqa: B008 - frozen
    ) -> None:
        steps = (trajectory_steps, num_envs)
        self._spec = spec
        self._columns: dict[str, tuple[str, tuple[int, ...]]] = {
            OBSERVATION: (spec.observation_dtype, (trajectory_steps + 1, num_envs, *spec.observation_shape)),
            ACTION: (spec.action.dtype, (*steps, *spec.action.shape)),
            LOG_PROB: ("float32", steps),
            REWARD: ("float32", steps),
            TERMINATED: ("bool", steps),
            TRUNCATED: ("bool", steps),
            VALID: ("bool", steps),
        }
        if spec.masked:
            packed = packed_width(spec.action.outputs)
            dtype, width = ("uint8", packed) if packed else ("bool", spec.action.outputs)
            self._columns[ACTION_MASK] = (dtype, (trajectory_steps + 1, num_envs, width))
        if state_size:
            self._columns[STATE] = ("float32", (num_envs, state_size))
        if earned:
            self._columns[EARNED] = ("float32", (num_envs,))
        if searched:
            width = target_width(spec.action.outputs)
            self._columns[TARGET_ACTION] = ("int32", (*steps, width))
            self._columns[TARGET_CHANCE] = ("float32", (*steps, width))
        log_prob = bounds.log_prob * max(1, len(spec.action.sizes) or len(spec.action.low))
        self._limits = {REWARD: bounds.reward, OBSERVATION: bounds.observation, LOG_PROB: log_prob}
        if bounded_actions:
            self._limits[ACTION] = 1.0
        self._dtypes = {name: np.dtype(dtype) for name, (dtype, _) in self._columns.items()}

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self._columns.values())

    def check(self, columns: Mapping[str, Array]) -> None:
        """Raises InvalidInput, which names the first column that does not fit."""
        for name in columns:
            if name not in self._columns:
                known = ", ".join(self._columns)
                raise InvalidInput(f"column {name} is unknown; a trajectory has {known}", reason="COLUMN", tensor=name)
        for name, (dtype, shape) in self._columns.items():
            if name not in columns:
                raise InvalidInput(f"column {name} is missing", reason="COLUMN", tensor=name)
            column = columns[name]
            if column.dtype != self._dtypes[name]:
                raise InvalidInput(f"column {name} must be {dtype}, got {column.dtype}", reason="DTYPE", tensor=name)
            if column.shape != shape:
                message = f"column {name} must have shape {list(shape)}, got {list(column.shape)}"
                raise InvalidInput(message, reason="SHAPE", tensor=name)
            if column.dtype.kind == "f":
                self._check_size(name, column)
        self._check_ranges(columns)

    def _check_size(self, name: str, column: Array) -> None:
        limit = self._limits.get(name, _LARGEST)
        # One fast pass settles nearly all columns: no square is larger than the sum of squares.
        if float(np.vdot(column, column)) <= limit * limit:
            return
        # If there is a NaN, both are NaN.
        least, most = float(column.min()), float(column.max())
        if not (-limit <= least and most <= limit):
            if not (math.isfinite(least) and math.isfinite(most)):
                raise InvalidInput(f"column {name} has values that are not finite", reason="NOT_FINITE", tensor=name)
            setting = "" if name == ACTION else f" (experience.max_{name})"
            message = f"column {name} must lie within ±{limit:g}{setting}, got {least:g}..{most:g}"
            raise InvalidInput(message, reason="OUT_OF_BOUNDS", tensor=name)

    def _check_ranges(self, columns: Mapping[str, Array]) -> None:
        if self._spec.action.kind != "continuous":
            sizes = self._spec.action.sizes
            choices = columns[ACTION].reshape(-1, len(sizes))
            for index, size in enumerate(sizes):
                _check_within(ACTION, choices[:, index], size)
        if self._spec.observation_states:
            _check_within(OBSERVATION, columns[OBSERVATION], self._spec.observation_states)
        if TARGET_CHANCE in self._columns:
            _check_within(TARGET_ACTION, columns[TARGET_ACTION], self._spec.action.outputs)
            _check_targets(columns)
        # A density may exceed 1; a probability may not.
        if self._spec.action.kind != "continuous" and (most := columns[LOG_PROB].max()) > 1e-3:
            message = f"column {LOG_PROB} must be <= 0, got {most:g}"
            raise InvalidInput(message, reason="RANGE", tensor=LOG_PROB)


def _check_within(name: str, values: Array, size: int) -> None:
    # One pass instead of two: without its sign, a negative number is larger than any size.
    if values.dtype == np.int64 and values.view(np.uint64).max() < size:
        return
    if values.min() < 0 or values.max() >= size:
        message = f"column {name} must lie in 0..{size - 1}, got {values.min()}..{values.max()}"
        raise InvalidInput(message, reason="RANGE", tensor=name)


def _check_targets(columns: Mapping[str, Array]) -> None:
    chances = columns[TARGET_CHANCE]
    sums = chances.sum(axis=-1)
    if chances.min() < 0.0 or np.abs(sums - 1.0).max() > 1e-3:
        found = f"{chances.min():g} at least and sums of {sums.min():g}..{sums.max():g}"
        raise InvalidInput(
            f"column {TARGET_CHANCE} must have chances that sum to 1, got {found}", reason="RANGE", tensor=TARGET_CHANCE
        )
    if ACTION_MASK in columns and (chances[~allowed(columns[ACTION_MASK][:-1], columns[TARGET_ACTION])] > 0.0).any():
        message = f"column {TARGET_CHANCE} must be 0 where {ACTION_MASK} forbids the action"
        raise InvalidInput(message, reason="RANGE", tensor=TARGET_CHANCE)


def check_episodes(fragment: Fragment) -> None:
    """Raises InvalidInput when the episodes are impossible."""
    episodes = EpisodeColumns.of(fragment.episodes)
    if len(episodes) and not (np.isfinite(episodes.returns).all() and episodes.steps.min() >= 0):
        raise InvalidInput("the episodes have returns that are not finite, or negative lengths", reason="EPISODES")
