"""The gymnasium wrappers that a configuration may apply to an environment."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from .spaces import refusal

# Wrappers that change observations, actions or rewards; others write files or open windows.
WRAPPERS = (
    "AtariPreprocessing",
    "ClipReward",
    "DelayObservation",
    "FlattenObservation",
    "GrayscaleObservation",
    "MaxAndSkipObservation",
    "RepeatAction",
    "RescaleObservation",
    "ResizeObservation",
    "StickyAction",
    "TimeAwareObservation",
    "TimeLimit",
)

Wrap: TypeAlias = Callable[[gymnasium.Env[Any, Any]], gymnasium.Wrapper[Any, Any, Any, Any]]


def wrappers_of(wanted: Mapping[str, Any]) -> list[Wrap]:
    """The wrappers of `environment.wrappers`, the innermost first."""
    for name, given in wanted.items():
        if name not in WRAPPERS or not hasattr(gymnasium.wrappers, name):
            raise refusal(f"environment.wrappers knows {', '.join(WRAPPERS)}, not {name!r}")
        if given is not None and not isinstance(given, Mapping):
            raise refusal(f"environment.wrappers.{name} must map its arguments to values, got {given!r:.60}")
    return [
        functools.partial(getattr(gymnasium.wrappers, name), **_arguments(given or {}))
        for name, given in wanted.items()
    ]


def _arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The wrapper's arguments: YAML and JSON have no tuples, and a wrapper that takes several numbers wants one."""
    return {name: _bounds(name, value) if isinstance(value, (list, tuple)) else value for name, value in given.items()}


def _bounds(name: str, value: Any) -> Any:
    """RescaleObservation takes an array for each of its bounds; sizes are tuples."""
    return np.array(value) if name in ("min_obs", "max_obs") else tuple(value)
