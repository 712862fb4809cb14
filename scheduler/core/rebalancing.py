"""Which assignments that have not started are taken back. Pure: looks at the fleet and names tasks."""

from itertools import islice

from .placement import Actor, ActorState, Fleet
from .task import Task


def to_take_back(fleet: Fleet, now: float, min_age: float) -> list[Task]:
    """Leases beyond an actor's slots, the newest first, that were granted at least `min_age` ago and that its last
    heartbeat named. What it did not name has not reached it, or has ended there at once, as inline handlers do, and its
    result is on its way.

    From a paused or leaving actor all of them; from a working one only as many as others have free slots for. From one
    that is away nothing: it may be running any of them, and has its time to come back.
    """
    chosen: list[Task] = []
    promised: dict[Actor, int] = {}
    for actor in fleet.actors.values():
        waiting = len(actor.leases) - actor.slots
        state = actor.state
        if waiting <= 0 or state is ActorState.LOST:
            continue
        unconditional = state is not ActorState.READY
        for task in list(islice(reversed(actor.leases.values()), waiting)):
            if task.lease_time > now - min_age or task.lease_id not in actor.named:
                continue
            if unconditional or _find_free_slot(fleet, task, actor, promised):
                chosen.append(task)
    return chosen


def _find_free_slot(fleet: Fleet, task: Task, owner: Actor, promised: dict[Actor, int]) -> bool:
    other = fleet.choose(task.task_class, free_only=True)
    if other is None or other is owner:
        return False
    taken = promised.get(other, 0)
    if taken >= min(other.room, other.slots - len(other.leases)):
        return False
    promised[other] = taken + 1
    return True
