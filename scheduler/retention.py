"""Finished tasks, kept for a bounded time, number and size. The first to finish is the first to go."""

from collections import deque
from collections.abc import Iterator

from .config import RetentionConfig
from .task import Task


class Retention:
    """Decides what is forgotten; the owner removes it."""

    def __init__(self, config: RetentionConfig) -> None:
        self._config = config
        self._finished: deque[Task] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._finished)

    def keep(self, task: Task) -> None:
        self._finished.append(task)
        self._bytes += len(task.body) + len(task.result)

    def keep_all(self, tasks: list[Task]) -> None:
        self._finished += tasks
        self._bytes += sum([len(task.body) + len(task.result) for task in tasks])

    def newest_first(self) -> Iterator[Task]:
        return reversed(self._finished)

    def excess(self, now: float) -> list[Task]:
        """Removes and returns what is to be forgotten, oldest first."""
        config, finished = self._config, self._finished
        gone: list[Task] = []
        while finished and (
            len(finished) > config.max_tasks
            or self._bytes > config.max_bytes
            or finished[0].end_time <= now - config.max_seconds
        ):
            gone.append(self._drop())
        return gone

    def drop(self, count: int) -> list[Task]:
        """What a journal says was forgotten."""
        return [self._drop() for _ in range(min(count, len(self._finished)))]

    def _drop(self) -> Task:
        task = self._finished.popleft()
        self._bytes -= len(task.body) + len(task.result)
        return task
