"""How much a replay holds: the columns of a step, and as many steps and images as its settings allow."""

import math

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.telemetry import get_logger
from parlmesh.types import ACTION, OBSERVATION, EnvironmentSpec

from .config import ReplayConfig
from .frames import Frames
from .replay import PrioritisedReplay, Replay, UniformReplay
from .ring import Columns, row_bytes

log = get_logger("parlmesh.learner")

RETURN, DISCOUNT = "return", "discount"
NEXT_OBSERVATION, NEXT_MASK = "next_observation", "next_mask"


def columns_of(environment: EnvironmentSpec, *, numbered: bool = False) -> Columns:
    """Columns of a step in the replay; `numbered` images are kept as the numbers of their planes."""
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


def frames_for(
    where: str, config: ReplayConfig, environment: EnvironmentSpec, stacked: int
) -> tuple[Frames, ReplayConfig]:
    """Room for a replay's images, and the replay's settings with as many steps as fit beside them. Steps refer to
    images by number. `where` names the settings."""
    shape, dtype = environment.observation_shape, environment.observation_dtype
    planes, plane_bytes = shape[0], np.dtype(dtype).itemsize * math.prod(shape[1:])
    row, limit = row_bytes(columns_of(environment, numbered=True)), config.capacity_bytes
    shift = planes // stacked if stacked > 1 else 1
    most = min(config.capacity_steps, limit // (row + shift * plane_bytes))
    capacity = min((limit - most * row) // plane_bytes, 2 * most * planes)
    # If the stack is unknown, images may share nothing; and every fragment starts with a whole stack.
    a_step = 1.1 * (shift if stacked > 1 else planes)
    steps = min(most, int(capacity / a_step))
    _check_room(where, config, steps, round(row + a_step * plane_bytes))
    return Frames(shape, dtype, capacity, shift=shift), config.model_copy(update={"capacity_steps": most})


def _check_room(where: str, config: ReplayConfig, steps: int, step_bytes: int) -> None:
    """Warns if fewer steps fit than were requested; ConfigError if they are too few to start."""
    if steps < config.min_steps:
        raise ConfigError(
            f"{where} has room for {steps} steps of {step_bytes} bytes; "
            f"min_steps must be at most that, got {config.min_steps}"
        )
    if steps < config.capacity_steps:
        limit = f"{where}.capacity_bytes {config.capacity_bytes}"
        asked = config.capacity_steps
        log.warning("replay_shortened", steps=steps, capacity_steps=asked, bytes_per_step=step_bytes, limit=limit)


def replay_for(where: str, config: ReplayConfig, columns: Columns) -> Replay:
    """A replay with room for as many steps as both limits allow."""
    capacity = min(config.capacity_steps, config.capacity_bytes // row_bytes(columns))
    _check_room(where, config, capacity, row_bytes(columns))
    if config.kind == "prioritised":
        return PrioritisedReplay(columns, capacity, exponent=config.priority_exponent)
    return UniformReplay(columns, capacity)
