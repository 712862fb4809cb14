"""When the tasks that run now should end, so that an actor has its next one just before it needs it."""

import math
from heapq import heappop, heappush

from .placement import Actor
from .task import Task


class Endings:
    """A heap of (time, lease id, actor); whether the lease still stands is for the owner to see."""

    def __init__(self, lead_seconds: float) -> None:
        self._lead = lead_seconds
        self._heap: list[tuple[float, int, Actor]] = []

    @property
    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def expect(self, actor: Actor, tasks: list[Task], now: float) -> None:
        """Tasks that were just leased to an actor whose runs are of even length."""
        free = actor.slots - (len(actor.leases) - len(tasks))
        for position, task in enumerate(tasks):
            # What found no free slot was given this long before one becomes free.
            wait = 0.0 if position < free else self._lead
            heappush(self._heap, (now + wait + actor.spell - self._lead, task.lease_id, actor))

    def take_due(self, now: float) -> list[tuple[int, Actor]]:
        """Those that are due, and those that soon will be: many slots at work cost few alarms."""
        due, soon = [], now + self._lead / 4
        while self._heap and self._heap[0][0] <= soon:
            _, lease_id, actor = heappop(self._heap)
            due.append((lease_id, actor))
        return due
