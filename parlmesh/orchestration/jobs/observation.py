"""An orchestrator's observation of its job, as numbers around 0 to 1; the last are counts for the reward."""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array

from .simulation import Simulation

_MANY = 32.0
COUNTED = 256.0
"""Scale of counts; a power of two, so that counts survive float32 exactly."""
_LONG = 64.0
_DEEP = 8.0


class Seen(NamedTuple):
    """Columns of an observation, by name."""

    remaining: Array
    ready: Array
    ready_share: Array
    """Share of the remaining sub-tasks that are ready: 1 in a wide job, small in a chain."""
    alone: Array
    """1 when one sub-task is ready and no sub-agent is busy: nothing can run in parallel."""
    chain: Array
    """Longest chain of remaining sub-tasks."""
    width: Array
    """Remaining sub-tasks per link of that chain."""
    busy: Array
    idle: Array
    budget_left: Array
    mean_steps: Array
    """Mean steps of the answers so far."""
    longest: Array
    failure_rate: Array
    stages: Array
    own: Array
    size: Array
    coverage: Array
    finished: Array
    critical: Array
    widest: Array
    """Most sub-tasks that could run at once so far; 1 in a chain."""
    created: Array
    assigned: Array
    completed: Array


FIELDS = Seen._fields
ENDS = FIELDS[-7:]
"""The last columns of every orchestrator's observation."""
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
    """The reward's inputs from the last columns of observations: integer counts, coverage and whether it finished."""
    ends = {name: observations[..., index - len(ENDS)] for index, name in enumerate(ENDS)}
    whole = {name: np.rint(ends[name] * COUNTED).astype(np.int64) for name in ENDS[2:]}
    return {**whole, "coverage": ends["coverage"], "finished": ends["finished"] > 0}
