"""Converts an environment's observations for a policy, and the policy's actions for the environment."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.policies.policy_spec import PolicySpec
from parlmesh.types import ACTION_MASK, Array

_NUMBERS = "biuf"
_LARGEST = np.finfo(np.float32).max


class Reader:
    """Checks observations of one kind of environment, which is created once, and only if its spaces are needed."""

    def __init__(self, spec: PolicySpec, environment: Mapping[str, Any], plugins: Sequence[str] = ()) -> None:
        self._spec = spec
        self._plugins = plugins
        self._environment = environment
        _check_environment(spec, environment)
        self._stacked = int(environment.get("stacked") or 1)
        self._last: Array | None = None
        self._spaces: Any = None

    def reset(self) -> None:
        """Starts an episode: forgets earlier observations."""
        self._last = None

    def read(self, observation: Any) -> tuple[Array, bool]:
        """Observations as rows of one array, and whether the input was a single observation."""
        if isinstance(observation, (dict, tuple)):
            observation, single = self._joined(observation)
        else:
            observation = np.asarray(observation)
            grey = self._is_grey(observation.shape)
            single = observation.ndim == 2 if grey else observation.shape == self._shape()
            if single:
                observation = observation[None]
            if grey:
                observation = observation[:, None]
            if observation.shape[1:] != self._shape():
                observation, single = self._turned(observation)
        seen = self._chosen(observation)
        _check_numbers(seen)
        return self._with_last(seen), single

    def mask(self, observation: Any, given: Any, rows: int, *, single: bool) -> Array | None:
        """The allowed choices [rows, choices], from the observation or the caller; None if all are allowed."""
        if given is None and isinstance(observation, dict):
            given = observation.get(ACTION_MASK)
        if given is None:
            return None
        mask = np.asarray(given, np.bool_)
        mask = mask[None] if mask.ndim == 1 else mask
        wanted = (rows, self._spec.action.outputs)
        if mask.shape != wanted:
            raise InvalidInput(f"mask has the shape {mask.shape}; it must be {wanted}", reason="INVALID_MASK")
        return mask

    def give(self, action: Array, *, single: bool) -> Any:
        """Actions as `step` takes them."""
        if self._environment and (self._spec.action.kind != "continuous"):
            from parlmesh.environments.spaces import acted

            action = acted(self._known()[1]).give(action)
        if not single:
            return action
        if isinstance(action, tuple):
            return tuple(int(part[0]) for part in action)
        first = action[0]
        return int(first) if np.ndim(first) == 0 else first

    def _shape(self) -> tuple[int, ...]:
        """Shape of one observation before stacking or hiding."""
        shape = self._spec.observation_shape
        if self._spec.observation_states:
            return ()
        if self._environment.get("observed") is not None and self._environment:
            return tuple(self._known()[0].shape or ())
        return (shape[0] // self._stacked, *shape[1:]) if shape else ()

    def _is_grey(self, given: tuple[int, ...]) -> bool:
        """Whether images are given without their axis of one channel, [H, W] or [N, H, W]."""
        shape = self._shape()
        if len(shape) != 3 or shape[0] != 1 or given[-2:] != shape[1:] or len(given) not in (2, 3):
            return False
        # [1, H, W] is one image with its channel, or one environment's without.
        return given != shape or (bool(self._environment) and len(self._known()[0].shape or ()) == 2)

    def _turned(self, observation: Array) -> tuple[Array, bool]:
        """Converts images with channels last."""
        channels_first = self._shape()
        channels_last = (*channels_first[1:], channels_first[0]) if len(channels_first) == 3 else None
        if channels_last is not None and observation.shape[-3:] == channels_last:
            single = observation.ndim == 3
            rows = observation[None] if single else observation
            return np.moveaxis(rows, -1, 1), single
        raise InvalidInput(
            f"an observation has the shape {observation.shape}; the policy was trained on {self._shape()}",
            reason="INVALID_OBSERVATION",
        )

    def _joined(self, observation: Any) -> tuple[Array, bool]:
        from parlmesh.environments.spaces import observed

        if not self._environment:
            raise InvalidInput(
                f"an observation is a {type(observation).__name__}, which can only be read with its environment: "
                "name it, load_policy(..., environment=...)",
                reason="INVALID_OBSERVATION",
            )
        space = self._known()[0]
        single = space.contains(observation)
        rows = _rows(observation) if single else observation
        try:
            return observed(space).take(rows), single
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"{observation!r:.100} is no observation of the policy's environment; it must be one of "
                f"{space!r:.200}, or several as rows",
                reason="INVALID_OBSERVATION",
            ) from error

    def _chosen(self, observation: Array) -> Array:
        positions = self._environment.get("observed")
        if positions is None:
            return observation
        try:
            return observation[:, [int(position) for position in positions]]
        except IndexError:
            raise _refusal("observed", positions, f"positions from 0 to {observation.shape[1] - 1}") from None

    def _with_last(self, seen: Array) -> Array:
        if self._stacked == 1:
            return seen
        if self._last is None or len(self._last) != len(seen):
            self._last = np.repeat(seen[:, None], self._stacked, axis=1)
        else:
            self._last = np.concatenate((self._last[:, 1:], seen[:, None]), axis=1)
        return self._last.reshape(len(seen), *self._spec.observation_shape)

    def _known(self) -> Any:
        """Observation and action space."""
        if self._spaces is None:
            from parlmesh.environments import spaces_of
            from parlmesh.plugins import load_plugins

            load_plugins(self._plugins)
            self._spaces = spaces_of(self._environment)
        return self._spaces


def _check_environment(spec: PolicySpec, environment: Mapping[str, Any]) -> None:
    """A file may name any environment; its spaces are checked when they are needed."""
    shape, stacked = spec.observation_shape, environment.get("stacked") or 1
    if not _is_whole(stacked) or stacked < 1 or (stacked > 1 and (not shape or shape[0] % stacked)):
        raise _refusal("stacked", stacked, f"a whole number that divides the policy's observations of {list(shape)}")
    observed = environment.get("observed")
    most = shape[0] // int(stacked) if shape else 0
    if observed is not None and not (
        isinstance(observed, (list, tuple))
        and len(observed) == most
        and all(_is_whole(position) and position >= 0 for position in observed)
    ):
        raise _refusal("observed", observed, f"a list of {most} positions, from 0")
    for name in ("kwargs", "wrappers"):
        if not isinstance(environment.get(name) or {}, Mapping):
            raise _refusal(name, environment[name], "a mapping")


def _is_whole(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()


def _refusal(name: str, value: object, allowed: str) -> InvalidInput:
    return InvalidInput(f"environment.{name} is {value!r:.60}; it must be {allowed}", reason="ENVIRONMENT")


def _check_numbers(seen: Array) -> None:
    """Every action would be as good as any other to a policy that sees something else."""
    if seen.dtype.kind not in _NUMBERS:
        raise InvalidInput(
            f"an observation has the dtype {seen.dtype}; it must be numbers or bool", reason="INVALID_OBSERVATION"
        )
    # The policy computes with 32 bits, in which 1e300 is infinite.
    if seen.dtype.kind == "f" and not (np.abs(seen) <= _LARGEST).all():
        raise InvalidInput("an observation has values that are not finite", reason="INVALID_OBSERVATION")


def _rows(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _rows(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_rows(part) for part in observation)
    return np.asarray(observation)[None]
