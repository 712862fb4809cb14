"""The steps that a program took itself: their form, and what a run's policy takes."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from parlmesh.errors import InvalidInput

# The policy computes with 32 bits, in which 1e300 is infinite.
_LARGEST = float(np.finfo(np.float32).max)
_FEWEST = 5
"""Fields of a step without a default."""


class Step(NamedTuple):
    """One step of one environment. The action is the policy's, before it is scaled or squashed to the environment's
    bounds; only PPO needs `log_prob`."""

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool = False
    log_prob: float = 0.0


def check_steps(given: object) -> None:
    """InvalidInput for what is no collection of steps, such as a number or a single step."""
    if isinstance(given, Step) or not isinstance(given, Iterable):
        raise InvalidInput(f"experiences is {given!r:.60}; it must be a list of steps", reason="INVALID_STEP")


class StepShapes(NamedTuple):
    """What the run's policy observes and does."""

    observation: tuple[int, ...]
    states: int
    action: tuple[int, ...]
    choices: tuple[int, ...]
    """Of every entry of the action; empty for continuous actions."""
    bounded: bool
    """Whether actions are in -1..1, as SAC and TD3 have them."""
    off_policy: bool
    """Whether the run learns from any policy's steps."""

    def check(self, index: int, step: Step) -> None:
        """Raises InvalidInput for a step that cannot be one of the run's."""
        for name in ("observation", "next_observation"):
            _check_shape(index, name, getattr(step, name), self.observation)
            if self.states:
                _check_choice(index, name, getattr(step, name), (self.states,))
        _check_shape(index, "action", step.action, self.action)
        if self.choices:
            _check_choice(index, "action", step.action, self.choices)
        if self.bounded and (np.abs(np.asarray(step.action, np.float64)) > 1.0).any():
            raise InvalidInput(
                f"step {index}: action is {np.asarray(step.action).tolist()!r:.60}; it must be -1 to 1, before it is "
                "scaled to the environment's bounds",
                reason="OUT_OF_BOUNDS",
            )


def shapes_in(policy: bytes) -> StepShapes:
    """Read from the header of the safetensors file."""
    header = json.loads(policy[8 : 8 + int.from_bytes(policy[:8], "little")])
    spec = json.loads(header["__metadata__"]["policy"])
    states, action = int(spec.get("observation_states", 0)), spec["action"]
    choices = tuple(action.get("sizes") or ())
    shape = () if action["kind"] == "discrete" else (len(choices) or len(action["low"]),)
    choice = spec.get("choice", "sample")
    return StepShapes(
        () if states else tuple(spec["observation_shape"]),
        states,
        shape,
        choices,
        bounded=choice in ("squashed", "noisy"),
        off_policy=choice != "sample",
    )


def _check_shape(index: int, name: str, value: Any, wanted: tuple[int, ...]) -> None:
    if np.shape(value) != wanted:
        raise InvalidInput(
            f"step {index}: {name} has the shape {np.shape(value)}; the run's policy has {wanted}", reason="SHAPE"
        )


def _check_choice(index: int, name: str, value: Any, sizes: tuple[int, ...]) -> None:
    given = np.asarray(value)
    if given.dtype.kind not in "biu" or not ((given >= 0) & (given < np.array(sizes).reshape(given.shape))).all():
        allowed = " and ".join(f"0..{size - 1}" for size in sizes)
        raise InvalidInput(f"step {index}: {name} is {given.tolist()!r:.60}; it must be {allowed}", reason="CHOICE")


def step_of(index: int, given: Any) -> Step:
    """The step, if it is one by itself; raises InvalidInput that names its index and field."""
    if not isinstance(given, (tuple, list)) or not _FEWEST <= len(given) <= len(Step._fields):
        raise InvalidInput(
            f"step {index} is {given!r:.60}; it must be a Step, or a tuple of {', '.join(Step._fields)}",
            reason="INVALID_STEP",
        )
    step = given if isinstance(given, Step) else Step(*given)
    for name in ("observation", "action", "reward", "next_observation", "log_prob"):
        try:
            if np.iscomplexobj(getattr(step, name)):
                raise TypeError
            finite = (np.abs(np.asarray(getattr(step, name), np.float64)) <= _LARGEST).all()
        except (TypeError, ValueError):
            said = f"step {index}: {name} is {getattr(step, name)!r:.60}; it must be a number or an array of numbers"
            raise InvalidInput(said, reason="INVALID_STEP") from None
        if not finite:
            raise InvalidInput(f"step {index}: {name} is not finite", reason="NOT_FINITE")
    for name in ("reward", "log_prob"):
        if np.ndim(getattr(step, name)):
            raise InvalidInput(f"step {index}: {name} must be one number", reason="INVALID_STEP")
    for name in ("terminated", "truncated"):
        flag = np.asarray(getattr(step, name))
        if flag.ndim or flag.dtype.kind not in "biu" or flag not in (0, 1):
            said = f"step {index}: {name} is {getattr(step, name)!r:.60}; it must be True or False"
            raise InvalidInput(said, reason="INVALID_STEP")
    return step._replace(
        reward=float(step.reward),
        terminated=bool(step.terminated),
        truncated=bool(step.truncated),
        log_prob=float(step.log_prob),
    )
