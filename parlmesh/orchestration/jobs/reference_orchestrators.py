"""Untrained orchestrators for comparison: they map the simulation's state to an action in each job."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from parlmesh.types import Array

from .families import Job
from .simulation import HANDOVER_STEPS, Action, Simulation
from .sub_agents import SubAgent

Reference: TypeAlias = Callable[[Simulation], Array]


def single_agent(world: Simulation) -> Array:
    """Does everything itself."""
    return np.where(world.ready.any(1), Action.WORK, Action.FINISH)


def hand_rule(world: Simulation) -> Array:
    """One sub-agent per ready sub-task, up to 20; does a single ready sub-task itself."""
    ready, idle, busy = world.ready.sum(1), world.idle, world.busy
    nothing_left = (ready == 0) & (busy == 0)
    wanted = np.minimum(ready + busy, 20)
    return np.select(
        [nothing_left, (ready == 1) & (busy == 0), (ready > 0) & (idle > 0), (ready > 0) & (world.created < wanted)],
        [Action.FINISH, Action.WORK, Action.ASSIGN, Action.CREATE],
        Action.WAIT,
    )


def spam(world: Simulation) -> Array:
    """Creates fifty sub-agents first, then follows the hand rule."""
    return np.where(world.created < 50, Action.CREATE, hand_rule(world))


def random_action(mask: Array, rng: np.random.Generator) -> Array:
    """A random allowed action."""
    actions: Array = np.where(mask, rng.random(mask.shape), -1.0).argmax(1)
    return actions


def list_schedule(job: Job, agent: SubAgent, sub_agents: int) -> int:
    """Critical steps of a job on this many sub-agents if all durations were known and stages did not wait for groups.

    The longest remaining chain is started first; failures are repeated. Creating a sub-agent takes the orchestrator a
    step, so the k-th one starts after k steps.
    """
    steps, found = agent.results
    lengths = np.zeros(job.size, np.int64)
    for index, draws in enumerate(job.draws):
        for draw in draws:
            lengths[index] += steps[draw] + HANDOVER_STEPS
            if found[draw]:
                break
    chain = _chains(job, lengths)
    free_at = [1 + number for number in range(sub_agents)]
    ends: dict[int, int] = {}
    while len(ends) < job.size:
        ready = [i for i in range(job.size) if i not in ends and all(j in ends for j in np.flatnonzero(job.needs[i]))]
        # The sub-task that can start first; among equals, the one with the longest chain after it.
        worker = int(np.argmin(free_at))
        starts = {i: max([free_at[worker], *(ends[int(j)] for j in np.flatnonzero(job.needs[i]))]) for i in ready}
        chosen = min(ready, key=lambda i: (starts[i], -chain[i]))
        ends[chosen] = free_at[worker] = starts[chosen] + int(lengths[chosen])
    return max(ends.values()) + 1


def _chains(job: Job, lengths: Array) -> Array:
    """Steps from the start of each sub-task to the end of its longest chain."""
    found = lengths.copy()
    for _ in range(job.size):
        after = (job.needs * found[:, None]).max(0, initial=0)
        found = lengths + after
    return found


def oracle(job: Job, agent: SubAgent) -> int:
    """Critical steps of the list schedule with the best number of sub-agents."""
    return min(list_schedule(job, agent, number) for number in range(1, job.size + 1))
