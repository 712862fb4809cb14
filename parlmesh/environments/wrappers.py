"""The gymnasium wrappers that a configuration may apply to an environment."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium

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
    for name in wanted:
        if name not in WRAPPERS or not hasattr(gymnasium.wrappers, name):
            raise refusal(f"environment.wrappers knows {', '.join(WRAPPERS)}, not {name!r}")
    return [functools.partial(getattr(gymnasium.wrappers, name), **(given or {})) for name, given in wanted.items()]
