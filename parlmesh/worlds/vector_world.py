"""Base classes of the worlds' environments: many independent episodes in one array, and a single episode."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

Stepped: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]


class Outcome(NamedTuple):
    """One step's rewards, ends and `info` values by name, each [E]."""

    reward: Array
    terminated: Array
    truncated: Array
    told: dict[str, Array]


class WorldVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` episodes. Episode i is seeded with seed + i, as if alone; the step after its end only resets it."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, num_envs: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        several = isinstance(action_space, spaces.MultiDiscrete)
        self._choices = action_space.nvec if several else action_space.n  # type: ignore[attr-defined]
        self.rngs: list[np.random.Generator] = []
        self._ended = np.zeros(num_envs, np.bool_)
        self._everyone = np.ones(num_envs, np.bool_)

    @abstractmethod
    def begin(self, which: Array) -> None:
        """Starts these episodes, each from its own generator in `rngs`."""

    @abstractmethod
    def observe(self) -> Any:
        """The current observations, in fresh arrays."""

    @abstractmethod
    def act(self, actions: Array) -> Outcome:
        """One step of every episode; the results of ended episodes are ignored."""

    def reset(self, *, seed: int | list[int | None] | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts all episodes. Without a seed they keep their generators. `options` may contain gymnasium's
        `reset_mask` [E]: the other episodes continue."""
        several = isinstance(seed, list | tuple)
        seeds = list(seed) if several else [None if seed is None else seed + i for i in range(self.num_envs)]  # type: ignore[operator, arg-type]
        if len(seeds) != self.num_envs:
            raise InvalidInput(f"seed must be one number or {self.num_envs}, got {len(seeds)}", reason="ENVIRONMENT")
        if any(given is not None and not (isinstance(given, int | np.integer) and given >= 0) for given in seeds):
            raise InvalidInput(f"seeds must be whole numbers >= 0, got {seed}", reason="ENVIRONMENT")
        mask = self._everyone if options is None else np.asarray(options.get("reset_mask", self._everyone), np.bool_)
        kept: Sequence[np.random.Generator | None] = self.rngs or [None] * self.num_envs
        self.rngs = [
            rng if rng is not None and (given is None or not chosen) else np.random.default_rng(given)
            for given, rng, chosen in zip(seeds, kept, mask, strict=True)
        ]
        self.begin(np.flatnonzero(mask))
        self._ended = self._ended & ~mask
        return self.observe(), {}

    def step(self, actions: Any) -> Stepped:
        """One step of every episode."""
        given = np.asarray(actions)
        wrong = given.shape != self.action_space.shape or given.dtype.kind not in "iu"
        if wrong or (given < 0).any() or (given >= self._choices).any():
            wanted = f"{list(self.action_space.shape or ())} integers from 0 to {int(np.max(self._choices)) - 1}"
            raise InvalidInput(f"actions must be {wanted}, got {given.dtype}{list(given.shape)}", reason="ACTION")
        self.refuse_before_reset()
        return self.after(self.act(given.astype(np.int64, copy=False)))

    def refuse_before_reset(self) -> None:
        """Raises ResetNeeded before the first reset."""
        if not self.rngs:
            raise gymnasium.error.ResetNeeded("step before the first reset")

    def after(self, outcome: Outcome) -> Stepped:
        """Resets the episodes that had ended before this step, and returns the step's results."""
        resets = self._ended
        if resets.any():
            self.begin(np.flatnonzero(resets))
        reward = np.where(resets, 0.0, outcome.reward)
        terminated, truncated = outcome.terminated & ~resets, outcome.truncated & ~resets
        self._ended = terminated | truncated
        info: dict[str, Any] = {}
        for name, values in outcome.told.items():
            info[name] = np.where(resets, 0.0, values)
            info[f"_{name}"] = self._everyone.copy()
        return self.observe(), reward, terminated, truncated, info


class AloneEnv(gymnasium.Env[Any, Any]):
    """A single environment on top of a vector environment with one episode."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, many: WorldVectorEnv, render_mode: None = None) -> None:
        self.render_mode = render_mode
        self.many = many
        self.observation_space, self.action_space = many.single_observation_space, many.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        super().reset(seed=seed)
        seen, _ = self.many.reset(seed=seed)
        return _first(seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        return alone(self.many.step(np.asarray(action)[None]))


def alone(step: Stepped) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """A step of a vector environment with one episode, as a single environment's step."""
    seen, reward, terminated, truncated, info = step
    told = {name: float(values[0]) for name, values in info.items() if not name.startswith("_")}
    return _first(seen), float(reward[0]), bool(terminated[0]), bool(truncated[0]), told


def _first(seen: Any) -> Any:
    if isinstance(seen, dict):
        return {name: values[0] for name, values in seen.items()}
    return seen[0]
