"""Finished tasks, kept for a bounded time, number and size. The first to finish is the first to be forgotten."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from ..config import RetentionConfig
from ..journal.stored_task import StoredTask
from .task import Task, TaskState


class Retention:
    """Decides which tasks are forgotten; the owner removes them."""

    def __init__(self, config: RetentionConfig, largest_bytes: int = 0) -> None:
        """`largest_bytes`: most that one task takes, with its result."""
        self._config = config
        self._largest_bytes = largest_bytes
        self._finished: deque[Task] = deque()
        # Kept beside the tasks, because a stored task would have to be opened to be measured.
        self._sizes: deque[int] = deque()
        self._bytes = 0
        # How many are kept, by TaskState. `Statistics` knows neither those of a journal nor which are forgotten.
        self.by_state = [0] * (max(TaskState) + 1)
        # Whether number or size, rather than age, decided what was last forgotten.
        self._crowded = False

    def __len__(self) -> int:
        return len(self._finished)

    def keep(self, tasks: Sequence[Task]) -> None:
        """Takes tasks that have just ended, all in the same state."""
        sizes = [len(task.body) + len(task.result) for task in tasks]
        self._finished += tasks
        self._sizes += sizes
        self._bytes += sum(sizes)
        self.by_state[tasks[0].state] += len(tasks)

    def keep_stored(self, tasks: Sequence[StoredTask]) -> None:
        self._finished += tasks
        self._sizes += [task.size for task in tasks]
        self._bytes += sum(task.size for task in tasks)
        for state, count in Counter([task.state for task in tasks]).items():
            self.by_state[state] += count
        # A journal does not say why tasks were forgotten. If it was their size, what is kept has no room for another
        # that is as large as can be.
        if tasks and self._bytes + self._largest_bytes > self._config.max_bytes:
            self._crowded = True

    def newest_first(self) -> Iterator[Task]:
        return reversed(self._finished)

    def excess(self, now: float, unannounced: int = 0) -> list[Task]:
        """Removes and returns the tasks to forget, oldest first; never the newest `unannounced`, whose submitters may
        not know yet that they were accepted, and would submit them again."""
        config, finished = self._config, self._finished
        gone: list[Task] = []
        while len(finished) > unannounced:
            crowded = len(finished) > config.max_tasks or self._bytes > config.max_bytes
            if not crowded and finished[0].end_time > now - config.max_seconds:
                break
            self._crowded = crowded
            self._bytes -= self._sizes.popleft()
            task = finished.popleft()
            self.by_state[task.state] -= 1
            gone.append(task)
        return gone

    def remembers(self, now: float) -> float:
        """How many seconds back every finished task is kept; tasks that ended earlier may be forgotten."""
        finished, longest = self._finished, self._config.max_seconds
        if not self._crowded and len(finished) < self._config.max_tasks:
            return longest
        return min(longest, max(0.0, now - finished[0].end_time)) if finished else 0.0
