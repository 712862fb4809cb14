"""Converts between gymnasium's spaces and arrays: observations to rows of one array, choices to actions."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from parlmesh.errors import InvalidInput
from parlmesh.types import ACTION_MASK, ActionSpec, Array

Layout: TypeAlias = Literal["auto", "chw", "hwc"]
Take: TypeAlias = Callable[[Any], Array]


class Observed(NamedTuple):
    """Observations of one environment: shape, dtype and, if an observation is one of several states, their number.
    `take` turns the output of many environments into one array [E, *shape], `mask` into the allowed actions [E,
    choices]."""

    shape: tuple[int, ...]
    dtype: str
    states: int
    take: Take
    mask: Take | None = None


class Acted(NamedTuple):
    """The action space, and how to pass a choice [E, ...] to the environments."""

    spec: ActionSpec
    give: Callable[[Array], Any]


def observed(space: gymnasium.Space[Any], *, layout: Layout = "auto", float64: bool = False) -> Observed:
    """How to read observations of a space."""
    if isinstance(space, spaces.Box):
        return _box(space, layout, float64=float64)
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Observed((), "int64", int(space.n), lambda given: given - start if start else given)
    if (image := _masked_image(space)) is not None:
        read = _box(image, layout, float64=float64)
        return read._replace(take=lambda given: read.take(given["observation"]), mask=_mask)
    parts = list(_parts(space, "observation"))
    width = sum(width for width, _ in parts)
    takes = [take for _, take in parts]

    def joined(given: Any) -> Array:
        return np.concatenate([take(given) for take in takes], axis=1)

    masked = isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces
    return Observed((width,), "float32", 0, joined, _mask if masked else None)


def acted(space: gymnasium.Space[Any]) -> Acted:
    """How to choose actions of a space."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        spec = ActionSpec("discrete", sizes=(int(space.n),))
        return Acted(spec, lambda action: action + start if start else action)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        starts = space.start if np.any(space.start) else None
        spec = ActionSpec("multi_discrete", sizes=tuple(int(size) for size in space.nvec))
        return Acted(spec, lambda action: action if starts is None else action + starts)
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        return Acted(ActionSpec("multi_discrete", sizes=(2,) * space.shape[0]), lambda action: action.astype(np.int8))
    if isinstance(space, spaces.Tuple) and all(isinstance(part, spaces.Discrete) for part in space.spaces):
        first = [int(part.start) for part in space.spaces if isinstance(part, spaces.Discrete)]
        spec = ActionSpec("multi_discrete", sizes=tuple(int(part.n) for part in space.spaces))  # type: ignore[attr-defined]
        return Acted(spec, lambda action: tuple(action[:, index] + start for index, start in enumerate(first)))
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded():
        low, high = space.low.astype(float).tolist(), space.high.astype(float).tolist()
        return Acted(ActionSpec("continuous", low=tuple(low), high=tuple(high)), lambda action: action)
    known = "Discrete, MultiDiscrete [D], MultiBinary [D], a Tuple of Discrete or a bounded Box [D]"
    raise refusal(f"action space must be {known}, got {space}")


def mask_width(space: gymnasium.Space[Any]) -> int | None:
    """Number of entries of the action mask; None without a mask."""
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        return _width(space[ACTION_MASK])
    return None


def refusal(message: str) -> InvalidInput:
    """The error for an environment that cannot be used."""
    return InvalidInput(message, reason="ENVIRONMENT_SPACE")


def _box(space: spaces.Box, layout: Layout, *, float64: bool) -> Observed:
    # Networks compute in float32, so float64 would only double the traffic.
    dtype = "float32" if space.dtype == np.float64 and not float64 else str(space.dtype)
    if layout != "auto" and len(space.shape) != 3:
        raise refusal(f"environment.image {layout} needs an observation of three axes, got {list(space.shape)}")
    if layout == "hwc" or (layout == "auto" and _channels_last(space.shape)):
        rows, columns, channels = space.shape
        shape = (channels, rows, columns)
        return Observed(shape, dtype, 0, lambda given: np.moveaxis(given, 3, 1).astype(dtype, copy=False))
    if len(space.shape) == 2 and space.dtype == np.uint8:
        # A grey image without an axis of channels: it gets one, so that several are stacked along it.
        return Observed((1, *space.shape), dtype, 0, lambda given: given[:, None])
    return Observed(space.shape, dtype, 0, lambda given: given.astype(dtype, copy=False))


def _masked_image(space: gymnasium.Space[Any]) -> spaces.Box | None:
    """The image in an observation of an image and a mask, PettingZoo's convention for games."""
    if not isinstance(space, spaces.Dict) or set(space.spaces) != {"observation", ACTION_MASK}:
        return None
    image = space["observation"]
    return image if isinstance(image, spaces.Box) and len(image.shape) == 3 else None


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether an image has its channels last: its last axis is then shorter than both others."""
    return len(shape) == 3 and shape[2] < min(shape[:2])


def _parts(space: gymnasium.Space[Any], name: str) -> Iterator[tuple[int, Take]]:
    """Width of each leaf of a space, and how to read its flat float32 rows."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not (key == ACTION_MASK and name == "observation"):
                yield from ((width, _within(key, take)) for width, take in _parts(part, f"{name} {key!r}"))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from ((width, _within(index, take)) for width, take in _parts(part, f"{name} {index}"))
    elif isinstance(space, spaces.Discrete):
        yield int(space.n), _one_hot(int(space.n), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        for index, (size, start) in enumerate(zip(space.nvec, space.start, strict=True)):
            yield int(size), _column(index, _one_hot(int(size), int(start)))
    elif isinstance(space, (spaces.Box, spaces.MultiBinary)):
        yield _width(space), _flat
    else:
        known = "a Box, Discrete, MultiDiscrete [D], MultiBinary, or a Dict or Tuple of them"
        raise refusal(f"{name} must be {known}, got {space}")


def _within(key: Any, take: Take) -> Take:
    return lambda given: take(given[key])


def _column(index: int, take: Take) -> Take:
    return lambda given: take(given[:, index])


def _one_hot(states: int, start: int) -> Take:
    rows = np.eye(states, dtype=np.float32)
    return lambda given: rows[given - start]


def _flat(given: Any) -> Array:
    values: Array = given
    return values.reshape(len(values), -1).astype(np.float32)


def _mask(given: Any) -> Array:
    mask: Array = given[ACTION_MASK].astype(np.bool_)
    return mask


def _width(space: gymnasium.Space[Any]) -> int:
    return int(np.prod(space.shape or (1,)))
