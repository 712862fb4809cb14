"""Who waits for which outcome."""

import asyncio
from collections.abc import Iterable

from parlmesh.errors import ResourceExhausted

from .task import Task

MAX_BEHIND = 200_000


class Watch:
    """One stream's outcomes that it has not been sent yet, and the ids it still waits for.

    `wake` is set whenever `drain` may have something; it is the stream's own where other things wake it too.
    """

    def __init__(self, task_ids: set[str], submitter: str = "", wake: asyncio.Event | None = None) -> None:
        self.waiting_for = task_ids
        self.submitter = submitter
        self._ready: list[Task] = []
        self._wake = wake or asyncio.Event()
        self._error: Exception | None = None

    def give(self, task: Task) -> None:
        self.waiting_for.discard(task.task_id)
        self._ready.append(task)
        self._wake.set()
        if self.submitter and len(self._ready) > MAX_BEHIND:
            self.close(
                ResourceExhausted(
                    f'the watcher of submitter "{self.submitter}" is {MAX_BEHIND} outcomes behind',
                    reason="WATCHER_TOO_SLOW",
                )
            )

    def close(self, error: Exception) -> None:
        self._error = error
        self._wake.set()

    async def take(self) -> list[Task]:
        """Waits for outcomes and returns all there are; nothing once every named task was returned."""
        if not self._ready and not self.waiting_for and not self.submitter and self._error is None:
            return []
        await self._wake.wait()
        self._wake.clear()
        return self.drain()

    def drain(self) -> list[Task]:
        """All there are at present."""
        if self._error is not None:
            raise self._error
        tasks, self._ready = self._ready, []
        return tasks


class Watchers:
    """All watches, by what they wait for."""

    def __init__(self) -> None:
        self._by_task: dict[str, list[Watch]] = {}
        self._by_submitter: dict[str, list[Watch]] = {}
        self._all: set[Watch] = set()

    def add(self, watch: Watch, unfinished: Iterable[str]) -> None:
        """`unfinished` are those of its tasks whose ends are still to come; it is given the others by its owner."""
        self._all.add(watch)
        for task_id in unfinished:
            self._by_task.setdefault(task_id, []).append(watch)
        if watch.submitter:
            self._by_submitter.setdefault(watch.submitter, []).append(watch)

    def remove(self, watch: Watch) -> None:
        self._all.discard(watch)
        for task_id in watch.waiting_for:
            _remove(self._by_task, task_id, watch)
        if watch.submitter:
            _remove(self._by_submitter, watch.submitter, watch)

    def notify(self, tasks: Iterable[Task]) -> None:
        """Tells everyone who waits for these final tasks."""
        by_task, by_submitter = self._by_task, self._by_submitter
        if not by_task and not by_submitter:
            return
        for task in tasks:
            for watch in by_submitter.get(task.submitter, ()):
                watch.give(task)
            if task.task_id in by_task:
                for watch in by_task.pop(task.task_id):
                    watch.give(task)

    def close(self, error: Exception) -> None:
        for watch in self._all:
            watch.close(error)


def _remove(watches: dict[str, list[Watch]], key: str, watch: Watch) -> None:
    found = watches.get(key)
    if found is not None and watch in found:
        found.remove(watch)
        if not found:
            del watches[key]
