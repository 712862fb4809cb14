"""What an orchestrator sees of its job, as numbers around 0 to 1; the last ones are counts that a reward is made of."""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array

from .simulation import Simulation

_MANY = 32.0
_COUNTED = 256.0
"""A power of two, so that whole counts come back exactly from float32."""
_LONG = 64.0
_DEEP = 8.0


class Seen(NamedTuple):
    """Columns of an observation, by name."""

    remaining: Array
    ready: Array
    ready_share: Array
    """Of what remains: 1 in a wide job, little in a chain."""
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
    coverage: Array
    own: Array
    finished: Array
    critical: Array
    size: Array
    created: Array
    assigned: Array
    completed: Array


FIELDS = Seen._fields
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
        chain=chain / _DEEP,
        width=remaining / np.maximum(chain, 1) / _MANY,
        busy=world.busy / _MANY,
        idle=world.idle / _MANY,
        budget_left=1.0 - world.critical / world.limits.critical_steps,
        mean_steps=world.seen_steps / answers / _LONG,
        longest=world.longest / _LONG,
        failure_rate=world.failures / answers,
        stages=world.stages / _DEEP,
        coverage=world.coverage,
        own=world.own / _MANY,
        finished=world.finished,
        critical=world.critical / _COUNTED,
        size=world.size / _MANY,
        created=world.created / _COUNTED,
        assigned=world.assigned_ever / _COUNTED,
        completed=world.completed / _COUNTED,
    )
    return np.stack([np.asarray(column, np.float32) for column in seen], 1)


def counts(observations: Array) -> dict[str, Array]:
    """Whole numbers back from observations [..., fields]."""
    found = {
        name: np.rint(observations[..., COLUMN[name]] * _COUNTED).astype(np.int64)
        for name in ("critical", "created", "assigned", "completed")
    }
    return found | {
        "coverage": observations[..., COLUMN["coverage"]],
        "finished": observations[..., COLUMN["finished"]] > 0,
    }
