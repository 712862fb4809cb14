"""Which stream waits for which outcome."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from parlmesh.errors import ResourceExhausted
from parlmesh.security import Identity

from ..core.task import Task

# Most that a stream may leave unread before it is ended; a client that reconnects asks by id for outcomes it missed.
MAX_BEHIND = 200_000
MAX_BEHIND_BYTES = 64 * 1024 * 1024
# How much is encoded at once; the rest waits unencoded at no extra cost.
TAKE_BYTES = 4 * 1024 * 1024
# Bytes that a short text takes in memory, whatever its length.
WEIGHT_OF_A_NAME = 64
RETRY_SECONDS = 1.0


class Watch:
    """The outcomes that one stream has not been sent yet, and the ids it still waits for.

    `wake` is set whenever `drain` may have something; a stream that other things wake too passes its own.
    """

    def __init__(self, task_ids: set[str], submitter: str = "", wake: asyncio.Event | None = None) -> None:
        self.waiting_for = task_ids
        self.submitter = submitter
        # Tasks that were final before the watch started; the last is the next to be sent. Kept by id, so that a slow
        # reader keeps no forgotten task in memory.
        self._early: list[str] = []
        self._find: Callable[[str], Task | None] = lambda task_id: None
        self._ready: list[Task] = []
        self._bytes = 0
        self._wake = wake or asyncio.Event()
        self._error: Exception | None = None

    def give(self, task: Task) -> None:
        """Adds an outcome that just came."""
        if self._error is not None:
            return
        self.waiting_for.discard(task.task_id)
        self._ready.append(task)
        self._bytes += _size(task)
        self._wake.set()
        if len(self._ready) > MAX_BEHIND or self._bytes > MAX_BEHIND_BYTES:
            self.close(
                ResourceExhausted(
                    f"{len(self._ready)} outcomes of {self._bytes} bytes wait to be read; "
                    f"the limits are {MAX_BEHIND} and {MAX_BEHIND_BYTES}",
                    reason="WATCHER_TOO_SLOW",
                )
            )

    def give_early(self, task_ids: Sequence[str], find: Callable[[str], Task | None]) -> None:
        """Adds outcomes from before the watch; `find` returns each while it is kept."""
        if self._error is not None:
            return
        self._early[:0] = reversed(task_ids)
        self._find = find
        self.waiting_for.difference_update(self._early)
        self._wake.set()

    def close(self, error: Exception) -> None:
        """Ends the stream; nothing more is kept for it."""
        self._error = error
        self._early, self._ready, self._bytes = [], [], 0
        self._wake.set()

    async def take(self) -> list[Task]:
        """Waits for outcomes and returns some; an empty list once every named task was returned."""
        while not (tasks := self.drain()):
            if not self.waiting_for and not self.submitter:
                return []
            await self._wake.wait()
        return tasks

    def drain(self) -> list[Task]:
        """The available outcomes, up to the number that may be encoded at once."""
        self._wake.clear()
        if self._error is not None:
            raise self._error
        if not self._early and self._bytes <= TAKE_BYTES:
            tasks, self._ready, self._bytes = self._ready, [], 0
            return tasks
        taken, size = [], 0
        while self._early and size <= TAKE_BYTES:
            task = self._find(self._early.pop())
            if task is None:
                self.close(
                    ResourceExhausted(
                        "outcomes were forgotten before they were read (retention); ask for each by its id",
                        reason="WATCHER_TOO_SLOW",
                    )
                )
                raise self._error  # type: ignore[misc]
            taken.append(task)
            size += _size(task)
        count = 0
        while count < len(self._ready) and size <= TAKE_BYTES:
            size += _size(self._ready[count])
            self._bytes -= _size(self._ready[count])
            count += 1
        taken += self._ready[:count]
        del self._ready[:count]
        if self._early or self._ready:
            self._wake.set()
        return taken


class WatchedNames:
    """How much the ids in each identity's open watches weigh; ids are kept until their watch ends, read or unread.

    Operators of the whole fleet are not limited.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Identity, int] = {}

    @contextmanager
    def holding(self, identity: Identity, size: int, count: int) -> Iterator[None]:
        """Counts `count` ids of `size` bytes for a while; raises ResourceExhausted when they are too many."""
        weight = size + WEIGHT_OF_A_NAME * count
        if identity.owns_fleet:
            yield
            return
        held = self._held.get(identity, 0)
        if held + weight > self._most:
            raise ResourceExhausted(
                f"the ids in the open watches of {identity.name} weigh {held} bytes, and {weight} more are too many; "
                f"the limit is {self._most} (security.quotas.watched_bytes)",
                reason="TOO_MUCH_WATCHED",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._held[identity] = held + weight
        try:
            yield
        finally:
            self._held[identity] -= weight
            if not self._held[identity]:
                del self._held[identity]


class Watchers:
    """All watches, by the task they wait for."""

    def __init__(self) -> None:
        self._by_task: dict[str, list[Watch]] = {}
        self._by_submitter: dict[str, list[Watch]] = {}
        self._all: set[Watch] = set()

    def add(self, watch: Watch, unfinished: Iterable[str]) -> None:
        """`unfinished` are the tasks of the watch that have not ended; its owner gives it the others."""
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
        """Notifies all watches of these final tasks."""
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


def _size(task: Task) -> int:
    """The approximate size of its outcome."""
    failure = task.failure
    return 100 + len(task.result) + (0 if failure is None else len(failure.message))


def _remove(watches: dict[str, list[Watch]], key: str, watch: Watch) -> None:
    found = watches.get(key)
    if found is not None and watch in found:
        found.remove(watch)
        if not found:
            del watches[key]
