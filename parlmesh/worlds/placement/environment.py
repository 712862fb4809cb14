"""Placement as gymnasium knows it: one episode, or many in one array. Both are the same simulation."""

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .conditions import drawn_conditions
from .load import read_trace
from .settings import read_settings
from .simulation import Served, Simulation
from .views import VIEWS

Version = Literal[1, 2, 3]
_TOLD = ("latency", "resource", "balance", "refused", "latency_ms", "lost", "throughput")


class PlacementVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` episodes. The i-th is seeded by seed + i, as if it were alone; the step after its end only resets."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, num_envs: int = 1, *, version: Version = 3, **settings: Any) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}", reason="ENVIRONMENT")
        if version not in VIEWS:
            raise InvalidInput(f"version must be 1, 2 or 3, got {version}", reason="ENVIRONMENT")
        settings.pop("render_mode", None)
        read = read_settings(settings)
        self.num_envs = num_envs
        self.simulation = Simulation(read.build_cluster(version), read, num_envs)
        self.view = VIEWS[version](self.simulation)
        self.single_observation_space = self.view.observation_space
        self.single_action_space = self.view.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        single = self.single_action_space
        self._choices = single.nvec if isinstance(single, spaces.MultiDiscrete) else single.n  # type: ignore[attr-defined]
        self._trace = read_trace(read.trace, read.trace_part) if read.trace is not None else None
        self._rngs: list[np.random.Generator] = []
        self._ended = np.zeros(num_envs, np.bool_)
        self._told = {f"_{name}": np.ones(num_envs, np.bool_) for name in _TOLD}

    def reset(self, *, seed: int | list[int | None] | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins all episodes. Without a seed they go on with the generators they have."""
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise InvalidInput(f"seed must be one number or {self.num_envs}, got {len(seeds)}", reason="ENVIRONMENT")
        kept: Sequence[np.random.Generator | None] = self._rngs or [None] * self.num_envs
        self._rngs = [
            rng if rng is not None and given is None else np.random.default_rng(given)
            for given, rng in zip(seeds, kept, strict=True)
        ]
        self._begin(np.arange(self.num_envs))
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self.view.observe(self.simulation), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """One step of every episode."""
        given = self._checked(actions)
        return self._advance(*self.view.act(self.simulation, given))

    def place(self, wanted: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """A step that brings pods to where they are wanted [E, N, D], as any number of operations would. Baselines
        that are not bound to one operation for each deployment use it."""
        if wanted.shape != self.simulation.pods.shape or (wanted < 0).any():
            raise InvalidInput(f"wanted must be {self.simulation.pods.shape} numbers of pods >= 0", reason="ACTION")
        capacity = np.where(self.simulation.alive[:, :, None], self.simulation.cluster.capacity, 0.0)
        if (wanted @ self.simulation.cluster.need > capacity + 1e-9).any():
            raise InvalidInput("wanted asks for more than a node has", reason="ACTION")
        return self._advance(wanted.astype(np.int64), np.zeros(self.num_envs))

    def _advance(self, wanted: Array, refused: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        if not self._rngs:
            raise gymnasium.error.ResetNeeded("step before the first reset")
        resets = self._ended
        served = self.simulation.step(wanted, refused)
        if resets.any():
            self._begin(np.flatnonzero(resets))
        reward = np.where(resets, 0.0, served.reward)
        truncated = self.simulation.ended & ~resets
        self._ended = truncated.copy()
        terminated = np.zeros(self.num_envs, np.bool_)
        return self.view.observe(self.simulation), reward, terminated, truncated, self._info(served, resets)

    def _begin(self, which: Array) -> None:
        world = self.simulation
        drawn = [drawn_conditions(world.cluster, world.settings, self._trace, self._rngs[episode]) for episode in which]
        world.begin(which, drawn)

    def _info(self, served: Served, resets: Array) -> dict[str, Any]:
        told = {name: np.where(resets, 0.0, getattr(served, name)) for name in _TOLD}
        return {**told, **self._told}

    def _checked(self, actions: Any) -> Array:
        given = np.asarray(actions)
        wrong = given.shape != self.action_space.shape or given.dtype.kind not in "iu"
        if wrong or (given < 0).any() or (given >= self._choices).any():
            wanted = f"{list(self.action_space.shape or ())} integers from 0 to {int(np.max(self._choices)) - 1}"
            raise InvalidInput(f"actions must be {wanted}, got {given.dtype}{list(given.shape)}", reason="ACTION")
        return given.astype(np.int64, copy=False)


class PlacementEnv(gymnasium.Env[Any, Any]):
    """One episode after the other."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, *, version: Version = 3, render_mode: None = None, **settings: Any) -> None:
        self.render_mode = render_mode
        self._many = PlacementVectorEnv(1, version=version, **settings)
        self.simulation = self._many.simulation
        self.observation_space = self._many.single_observation_space
        self.action_space = self._many.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        seen, _ = self._many.reset(seed=seed)
        return _first(seen), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        return _alone(self._many.step(np.asarray(action)[None]))

    def place(self, wanted: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step that brings pods to where they are wanted [N, D]."""
        return _alone(self._many.place(wanted[None]))


def _alone(step: tuple[Any, Array, Array, Array, dict[str, Any]]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    seen, reward, terminated, truncated, info = step
    told = {name: float(info[name][0]) for name in _TOLD}
    return _first(seen), float(reward[0]), bool(terminated[0]), bool(truncated[0]), told


def _first(seen: Any) -> Any:
    if isinstance(seen, dict):
        return {name: values[0] for name, values in seen.items()}
    return seen[0]
