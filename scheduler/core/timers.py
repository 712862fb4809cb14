"""Moments that matter to tasks: ends of back-offs and queue timeouts, and when running tasks should end."""

import math
from heapq import heapify, heappop, heappush

from .actors.placement import Actor
from .task import Task, TaskState

FEW = 1024


class Timers:
    """A heap of (time, number, task). Entries of tasks that moved on are skipped, and swept when they pile up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Task]] = []
        self._sweep_at = FEW

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, time: float, task: Task) -> None:
        heappush(self._heap, (time, task.number, task))
        if len(self._heap) > self._sweep_at:
            self._heap = [item for item in self._heap if _due(item[2]) == item[0]]
            heapify(self._heap)
            self._sweep_at = max(FEW, 2 * len(self._heap))

    def take_due(self, now: float, most: int) -> list[Task]:
        """The first `most` tasks that are due; the others come next time."""
        due: list[Task] = []
        heap = self._heap
        while heap and heap[0][0] <= now and len(due) < most:
            time, _, task = heappop(heap)
            if _due(task) == time:
                due.append(task)
        return due


def _due(task: Task) -> float | None:
    """When this task is due at present."""
    if task.state is TaskState.WAITING:
        return task.wake_time or None
    # A task that an actor has may still wait for a slot there.
    if task.state in (TaskState.QUEUED, TaskState.RUNNING) and task.queue_timeout is not None:
        return task.ready_time + task.queue_timeout
    return None


class Endings:
    """When running tasks should end, so that an actor gets its next one just before it needs it.

    A heap of (time, lease id, actor); the owner checks whether the lease is still valid.
    """

    def __init__(self, lead_seconds: float) -> None:
        self._lead = lead_seconds
        self._heap: list[tuple[float, int, Actor]] = []

    @property
    def next_time(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def expect(self, actor: Actor, tasks: list[Task], now: float) -> None:
        """Notes tasks that were just leased to an actor whose runs are of even length."""
        free = actor.slots - (len(actor.leases) - len(tasks))
        for position, task in enumerate(tasks):
            # A task without a free slot was assigned this long before one becomes free.
            wait = 0.0 if position < free else self._lead
            heappush(self._heap, (now + wait + actor.run_seconds - self._lead, task.lease_id, actor))

    def take_due(self, now: float) -> list[tuple[int, Actor]]:
        """Leases that are due, and those that soon will be, so that many busy slots cost few alarms."""
        due, soon = [], now + self._lead / 4
        while self._heap and self._heap[0][0] <= soon:
            _, lease_id, actor = heappop(self._heap)
            due.append((lease_id, actor))
        return due
