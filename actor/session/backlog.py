"""The tasks that an actor holds until a slot is free, and the order in which they start."""

from collections import deque

from parlmesh.v1.fleet_service_pb2 import Assignment
from parlmesh.v1.task_pb2 import Priority

_LOWEST = Priority.PRIORITY_BACKGROUND
_HIGHEST = Priority.PRIORITY_CRITICAL


class Backlog:
    """Most urgent first; first come, first served within a priority."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Assignment]] = {
            priority: deque() for priority in range(_HIGHEST, _LOWEST - 1, -1)
        }
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, assignment: Assignment) -> None:
        """Adds a task behind all others of its priority."""
        self._queues[_known(assignment.priority)].append(assignment)
        self._length += 1

    def take(self) -> Assignment | None:
        """The next one, or None when none waits."""
        for queue in self._queues.values():
            if queue:
                self._length -= 1
                return queue.popleft()
        return None

    def clear(self) -> None:
        """Forgets all tasks."""
        for queue in self._queues.values():
            queue.clear()
        self._length = 0


def _known(priority: int) -> int:
    return priority if _LOWEST <= priority <= _HIGHEST else Priority.PRIORITY_NORMAL
