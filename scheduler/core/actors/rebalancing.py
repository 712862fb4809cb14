"""Chooses leases to take back, so that no task waits behind another while slots are free. Part of the core: no I/O."""

import math

from ..lifecycle import Lifecycle
from ..task import Task
from .placement import Actor, ActorState, Fleet


def rebalance(life: Lifecycle, unsettled: dict[Actor, None], now: float, min_age: float) -> int:
    """Takes back tasks that have not started and were leased at least `min_age` ago; returns how many. Their actors
    become unsettled."""
    tasks = _to_take_back(life.fleet, now, min_age)
    for task in tasks:
        actor = task.actor
        assert actor is not None
        life.revoke(actor, task.lease)
        life.take_back(task, now)
        unsettled[actor] = None
    life.statistics.moved += len(tasks)
    return len(tasks)


def _to_take_back(fleet: Fleet, now: float, min_age: float) -> list[Task]:
    """Leases that wait for a slot of their actor, the newest first, granted at least `min_age` ago.

    From a paused or leaving actor all of them; from a READY one as many as other actors have free slots for; from a
    lost one none, because it may be running any of them and still has time to come back.
    """
    chosen: list[Task] = []
    promised: dict[Actor, int] = {}
    for actor in fleet.actors.values():
        state = actor.state
        if len(actor.leases) <= actor.slots or state is ActorState.LOST:
            continue
        unconditional = state is not ActorState.READY
        for task in reversed(waiting(actor)):
            if task.lease_time > now - min_age:
                continue
            if unconditional or _find_free_slot(fleet, task, actor, promised):
                chosen.append(task)
    return chosen


def waiting(actor: Actor) -> list[Task]:
    """Tasks that cannot have started when the actor sent its last heartbeat: it named enough older leases to fill its
    slots, none of them less urgent. An actor starts the most urgent task first, and the oldest of these.

    A task that it did not name has not reached it, or ended there immediately, as with inline handlers, and its result
    is in flight.
    """
    found: list[Task] = []
    older, least = 0, math.inf
    for lease_id, task in actor.leases.items():
        if lease_id in actor.named:
            if older >= actor.slots and task.priority <= least:
                found.append(task)
            older, least = older + 1, min(least, task.priority)
    return found


def _find_free_slot(fleet: Fleet, task: Task, owner: Actor, promised: dict[Actor, int]) -> bool:
    other = fleet.choose(task.task_class, free_only=True)
    if other is None or other is owner:
        return False
    taken = promised.get(other, 0)
    if taken >= min(other.room, other.slots - len(other.leases)):
        return False
    promised[other] = taken + 1
    return True
