"""Brings ready tasks and actors with room together. Part of the core: no I/O."""

import math

from .lifecycle import Lifecycle
from .placement import Actor, ActorState, Fleet
from .sessions import Sessions
from .task import Task


def to_take_back(fleet: Fleet, now: float, min_age: float) -> list[Task]:
    """Leases that wait for a slot of their actor, the newest first, granted at least `min_age` ago.

    From a paused or leaving actor all of them; from a working one only as many as others have free slots for. From one
    that is away nothing: it may be running any of them, and has its time to come back.
    """
    chosen: list[Task] = []
    promised: dict[Actor, int] = {}
    for actor in fleet.actors.values():
        state = actor.state
        if len(actor.leases) <= actor.slots or state is ActorState.LOST:
            continue
        unconditional = state is not ActorState.READY
        for task in reversed(_waiting(actor)):
            if task.lease_time > now - min_age:
                continue
            if unconditional or _find_free_slot(fleet, task, actor, promised):
                chosen.append(task)
    return chosen


def _waiting(actor: Actor) -> list[Task]:
    """Those that cannot have begun when its last heartbeat left: it named enough older ones to fill its slots, and none
    that it would begin later. It begins the most urgent first, and the oldest of these.

    What it did not name has not reached it, or has ended there at once, as inline handlers do, and its result is on
    its way.
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


# Into how many parts per actor a large number of ready tasks is divided.
PARTS = 4


class Dispatch:
    """`run` follows every event; the other methods say what it is to look at."""

    def __init__(self, life: Lifecycle, sessions: Sessions, now: float) -> None:
        self._life = life
        self._sessions = sessions
        self.last_time = now
        """Of the last `run`."""

    def foresee(self, now: float) -> None:
        """Counts the slots as free whose tasks are about to end."""
        for lease_id, actor in self._life.endings.take_due(now):
            if lease_id in actor.leases:
                actor.ending.add(lease_id)
                self.freed(actor)

    def freed(self, actor: Actor) -> None:
        """A lease of this actor ends outside its own message; `run` looks at its room again."""
        self._sessions.unsettled[actor] = None

    def fill(self, actor: Actor, now: float) -> None:
        """Gives an actor what it has room for."""
        life = self._life
        if life.queue.ready and (room := actor.room) > 0:
            tasks = life.queue.take(actor.classes, room)
            if tasks:
                life.grant(tasks, actor, now)
        life.fleet.settle(actor)

    def run(self, now: float) -> None:
        """Brings ready tasks and idle actors together until there is no pair left."""
        self.last_time = now
        fleet = self._life.fleet
        changed = [actor for actor in self._sessions.unsettled if actor.profile is not None]
        self._sessions.unsettled.clear()
        for actor in changed:
            fleet.settle(actor)
        if self._life.fresh:
            self._spread(now)
        # Last, so that what was taken from an actor goes to a free slot and not back to it.
        for actor in changed:
            self.fill(actor, now)

    def _spread(self, now: float) -> None:
        """Gives tasks that became ready to actors with room."""
        life = self._life
        for task_class in life.fresh:
            while task_class.ready:
                actor = life.fleet.choose(task_class)
                if actor is None:
                    break
                # Scarce tasks are spread one by one; of plenty an actor gets a part at once. Free slots come first.
                free = actor.slots - len(actor.leases)
                part = 1 + task_class.ready // (PARTS * len(self._sessions.by_number))
                tasks = life.queue.take(actor.classes, min(part, actor.room, free if free > 0 else part))
                assert tasks, f"{actor.actor_id} was chosen for a class that it cannot run"
                life.grant(tasks, actor, now)
                life.fleet.settle(actor)
        life.fresh.clear()

    def rebalance(self, now: float, min_age: float) -> int:
        """Takes back what has not started and was leased at least `min_age` ago; how many."""
        tasks = to_take_back(self._life.fleet, now, min_age)
        for task in tasks:
            actor = task.actor
            assert actor is not None
            self._life.revoke(actor, task.lease)
            self._life.take_back(task, now)
            self.freed(actor)
        self._life.statistics.moved += len(tasks)
        return len(tasks)
