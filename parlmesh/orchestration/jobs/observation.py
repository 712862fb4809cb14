"""What an orchestrator sees of its job, as numbers around 0 to 1; the last ones are counts that a reward is made of."""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array

from .simulation import Simulation

_MANY = 32.0
COUNTED = 256.0
"""A power of two, so that whole counts come back exactly from float32."""
_LONG = 64.0
_DEEP = 8.0


class Seen(NamedTuple):
    """Columns of an observation, by name."""

    remaining: Array
    ready: Array
    ready_share: Array
    """Of what remains: 1 in a wide job, little in a chain."""
    alone: Array
    """1 when a single sub-task is ready and nobody works: there is nothing to do side by side."""
    chain: Array
    """Longest chain of sub-tasks that remain."""
    width: Array
    """What remains per link of that chain."""
    busy: Array
    idle: Array
    budget_left: Array
    mean_steps: Array
    """Of the answers so far."""
    longest: Array
    failure_rate: Array
    stages: Array
    own: Array
    size: Array
    coverage: Array
    finished: Array
    critical: Array
    widest: Array
    """Most sub-tasks that could be worked on at once so far; 1 in a chain."""
    created: Array
    assigned: Array
    completed: Array


FIELDS = Seen._fields
ENDS = FIELDS[-7:]
"""The columns that every observation of an orchestrator ends with, whatever it begins with."""
COLUMN = {name: index for index, name in enumerate(FIELDS)}


def observe(world: Simulation) -> Array:
    """Observations [count, fields] as float32."""
    remaining = (~world.done).sum(1)
    ready = world.ready.sum(1)
    chain = np.where(world.done, 0, world.links).max(1)
    answers = np.maximum(world.tries.sum(1), 1)
    seen = Seen(
        remaining=remaining / _MANY,
        ready=ready / _MANY,
        ready_share=ready / np.maximum(remaining, 1),
        alone=(ready == 1) & (world.busy == 0),
        chain=chain / _DEEP,
        width=remaining / np.maximum(chain, 1) / _MANY,
        busy=world.busy / _MANY,
        idle=world.idle / _MANY,
        budget_left=1.0 - world.critical / world.limits.critical_steps,
        mean_steps=world.seen_steps / answers / _LONG,
        longest=world.longest / _LONG,
        failure_rate=world.failures / answers,
        stages=world.stages / _DEEP,
        own=world.own / _MANY,
        size=world.size / _MANY,
        coverage=world.coverage,
        finished=world.finished,
        critical=world.critical / COUNTED,
        widest=world.widest / COUNTED,
        created=world.created / COUNTED,
        assigned=world.assigned_ever / COUNTED,
        completed=world.completed / COUNTED,
    )
    return np.stack([np.asarray(column, np.float32) for column in seen], 1)


def counts(observations: Array) -> dict[str, Array]:
    """What a reward is made of, from the last columns of observations: whole numbers, but for the coverage."""
    ends = {name: observations[..., index - len(ENDS)] for index, name in enumerate(ENDS)}
    whole = {name: np.rint(ends[name] * COUNTED).astype(np.int64) for name in ENDS[2:]}
    return {**whole, "coverage": ends["coverage"], "finished": ends["finished"] > 0}
