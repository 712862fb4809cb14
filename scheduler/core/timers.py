"""Moments at which a task must be looked at again: ends of back-offs and of queue timeouts."""

from heapq import heapify, heappop, heappush

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

    def take_due(self, now: float) -> list[Task]:
        due = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            time, _, task = heappop(heap)
            if _due(task) == time:
                due.append(task)
        return due


def _due(task: Task) -> float | None:
    """When this task is to be looked at, as things stand."""
    if task.state is TaskState.WAITING:
        return task.wake_time or None
    if task.state is TaskState.QUEUED and task.queue_timeout is not None:
        return task.ready_time + task.queue_timeout
    return None
