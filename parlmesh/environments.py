"""Environments as the collector steps them: many at once, one array of observations, masks beside them.

Gymnasium's NEXT_STEP autoreset is required: the observation after the last step of an episode is then the true final
one, so values can be bootstrapped from it, and the step that follows only resets and is marked invalid.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from parlmesh.errors import InvalidInput
from parlmesh.types import ACTION_MASK, ActionSpec, Array, EnvironmentSpec


class Seen(NamedTuple):
    """Observations [E, ...] and, for masked environments, the allowed actions [E, choices]."""

    observation: Array
    mask: Array | None


class Environments:
    """`num_envs` copies of {"id": ..., "kwargs": {...}}, in the environment's native vector form where it has one.

    "observed" names the numbers of an observation that are seen, by position; the others are hidden.
    """

    def __init__(self, environment: Mapping[str, Any], num_envs: int) -> None:
        self._envs = _make(environment, num_envs)
        try:
            self.spec = _spec(self._envs)
            self._observed = _positions(environment.get("observed"), self.spec)
        except InvalidInput:
            self._envs.close()
            raise
        if self._observed is not None:
            self.spec = replace(self.spec, observation_shape=(len(self._observed),))
        space = self._envs.single_observation_space
        self._parts = _observed(space) if isinstance(space, spaces.Dict) else None

    def reset(self, seed: int) -> Seen:
        """The first observations."""
        observation, _ = self._envs.reset(seed=seed)
        return self._seen(observation)

    def step(self, action: Array) -> tuple[Seen, Array, Array, Array]:
        """What is seen next, rewards, terminations and truncations, each [E]."""
        observation, reward, terminated, truncated, _ = self._envs.step(action)
        return self._seen(observation), reward, terminated, truncated

    def close(self) -> None:
        """Frees them."""
        self._envs.close()

    def _seen(self, observation: Any) -> Seen:
        if self._parts is None:
            return Seen(observation if self._observed is None else observation[:, self._observed], None)
        rows = [_rows(observation[name], states) for name, states in self._parts]
        mask = observation[ACTION_MASK].astype(np.bool_) if self.spec.masked else None
        return Seen(np.concatenate(rows, axis=1), mask)


def environment_spec(environment: Mapping[str, Any]) -> EnvironmentSpec:
    """Shapes of an environment, read from one that is made and closed."""
    envs = Environments(environment, 1)
    envs.close()
    return envs.spec


def _make(environment: Mapping[str, Any], num_envs: int) -> VectorEnv:
    name, arguments = str(environment.get("id", "")), dict(environment.get("kwargs") or {})
    try:
        if gymnasium.spec(name).vector_entry_point is not None:
            envs = gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **arguments)
        else:
            mode = {"autoreset_mode": AutoresetMode.NEXT_STEP}
            envs = gymnasium.make_vec(name, num_envs, vectorization_mode="sync", vector_kwargs=mode, **arguments)
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise InvalidInput(f"environment {name!r} cannot be made: {error}", reason="ENVIRONMENT") from error
    if envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        envs.close()
        raise InvalidInput(f"environment {name!r} must reset in the NEXT_STEP mode", reason="ENVIRONMENT")
    return envs


def _spec(envs: VectorEnv) -> EnvironmentSpec:
    action = _action_spec(envs.single_action_space)
    space = envs.single_observation_space
    if isinstance(space, spaces.Box):
        return EnvironmentSpec(space.shape, str(space.dtype), action)
    if isinstance(space, spaces.Discrete) and int(space.start) == 0:
        return EnvironmentSpec((), "int64", action, observation_states=int(space.n))
    if isinstance(space, spaces.Dict):
        size = sum(states or _width(space[name]) for name, states in _observed(space))
        masked = ACTION_MASK in space.spaces
        if masked and _width(space[ACTION_MASK]) != action.outputs:
            width = _width(space[ACTION_MASK])
            raise _refusal(f"{ACTION_MASK} must have one entry per choice, {action.outputs}, got {width}")
        return EnvironmentSpec((size,), "float32", action, masked=masked)
    raise _refusal(f"observation space must be a Box, a Discrete from 0 or a Dict of them, got {space}")


def _positions(observed: Any, spec: EnvironmentSpec) -> Array | None:
    if observed is None:
        return None
    if len(spec.observation_shape) != 1 or spec.masked:
        raise _refusal(f"only a flat observation can be partly hidden, not one of shape {spec.observation_shape}")
    (size,) = spec.observation_shape
    positions = [int(position) for position in observed]
    if not positions or len(set(positions)) < len(positions) or not all(0 <= position < size for position in positions):
        raise _refusal(f"observed must name different positions from 0 to {size - 1}, got {positions}")
    return np.array(positions)


def _action_spec(space: gymnasium.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete) and int(space.start) == 0:
        return ActionSpec("discrete", sizes=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return ActionSpec("multi_discrete", sizes=tuple(int(size) for size in space.nvec))
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded():
        low, high = space.low.astype(float).tolist(), space.high.astype(float).tolist()
        return ActionSpec("continuous", low=tuple(low), high=tuple(high))
    raise _refusal(f"action space must be Discrete or MultiDiscrete from 0 or a bounded Box [D], got {space}")


def _observed(space: spaces.Dict) -> list[tuple[str, int]]:
    """The entries of a Dict that are observed, each with its number of states, 0 for arrays."""
    parts: list[tuple[str, int]] = []
    for name, part in space.spaces.items():
        if name == ACTION_MASK:
            continue
        if isinstance(part, spaces.Discrete) and int(part.start) == 0:
            parts.append((name, int(part.n)))
        elif isinstance(part, (spaces.Box, spaces.MultiBinary)):
            parts.append((name, 0))
        else:
            raise _refusal(f"observation {name!r} must be a Box, a Discrete from 0 or a MultiBinary, got {part}")
    return parts


def _width(space: gymnasium.Space[Any]) -> int:
    return int(np.prod(space.shape or (1,)))


def _rows(values: Array, states: int) -> Array:
    if states:
        return np.eye(states, dtype=np.float32)[values]
    return values.reshape(len(values), -1).astype(np.float32)


def _refusal(message: str) -> InvalidInput:
    return InvalidInput(message, reason="ENVIRONMENT_SPACE")
