"""Many tasks at once: all outcomes in input order, or each as it completes. One failure is one error among values."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from parlmesh.errors import DeadlineExceeded, InvalidInput

from .connection import Connection
from .connection.pending_outcomes import Sink
from .feed import Feed, Lent
from .outcomes import Outcome, abandoned
from .task_request import TaskRequest, array_bytes, owned


def parents_first(requests: Sequence[TaskRequest]) -> Sequence[int]:
    """The order nearest to the given one in which every parent comes before its children; cycles come last."""
    if not any(isinstance(request, TaskRequest) and request.dependencies for request in requests):
        return range(len(requests))
    names = {request.task_id: index for index, request in enumerate(requests) if _is_named(request)}
    parents = {index: found for index, request in enumerate(requests) if (found := _parents(request, names))}
    missing = {index: len(found) for index, found in parents.items()}
    children: dict[int, list[int]] = {}
    for index in missing:
        for parent in parents[index]:
            children.setdefault(parent, []).append(index)
    order: list[int] = []
    ready = [index for index in range(len(requests)) if index not in missing]
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for child in children.get(index, ()):
            missing[child] -= 1
            if not missing[child]:
                del missing[child]
                heapq.heappush(ready, child)
    return [*order, *sorted(missing)]


def _is_named(request: object) -> bool:
    return isinstance(request, TaskRequest) and bool(request.task_id)


def _parents(request: object, names: dict[str, int]) -> set[int]:
    dependencies = request.dependencies if isinstance(request, TaskRequest) else ()
    return {names[name] for name in dependencies if name in names}


_SLICE = 256
"""Tasks encoded at once, before the event loop may write those that wait."""
_SLICE_BYTES = 4 << 20
"""Bytes of arrays written at once: actors already have the first slice while the next is written."""
_LARGE_BYTES = 512 << 10
"""From this many bytes on, a thread writes the arrays of a slice, so the event loop is not held up."""


class Submits(Protocol):
    """The part of a connection that a window needs."""

    def each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Submits requests; the sink gets one outcome for each index."""
        ...

    async def each_large(self, requests: Sequence[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Writes the arrays of the requests, then submits them."""
        ...


class Window:
    """Holds at most `limit` tasks that are submitted and not yet released by the reader of outcomes."""

    def __init__(
        self, submissions: Submits, requests: Iterator[tuple[int, TaskRequest]], limit: int, deadline: float
    ) -> None:
        self._submissions = submissions
        self._requests = requests
        self._feed = requests if isinstance(requests, Feed) else None
        self._own = requests.own if isinstance(requests, Lent) else None
        self._room = limit
        self._deadline = deadline
        self._alarm: asyncio.TimerHandle | None = None
        self._expired = False
        self._filling: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        # Room that is worth a request while the reader is still busy with earlier outcomes.
        self._enough = max(1, limit // 8)
        self.unanswered = 0
        self._ready: list[Outcome] = []
        self._wake = asyncio.Event()

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Takes outcomes from the connection."""
        self.unanswered -= len(outcomes)
        self._ready += outcomes
        self._wake.set()

    async def take(self) -> list[Outcome]:
        """Submits what there is room for, then waits for outcomes and returns all there are; none at the end.

        Raises TimeoutError when the loop's time passes the deadline; `close` must follow.
        """
        self._fill()
        while not self._ready and self._error is None and (self.unanswered or self._filling is not None):
            await self._settled()
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, []
        return ready

    async def _settled(self) -> None:
        if self._alarm is None:
            # One alarm for the whole window: a timeout around every wait costs more than the wait itself.
            self._alarm = asyncio.get_running_loop().call_at(self._deadline, self._expire)
        if not self._expired:
            self._wake.clear()
            await self._wake.wait()
        if self._expired and not self._ready:
            raise TimeoutError

    def _expire(self) -> None:
        self._expired = True
        self._wake.set()

    def close(self) -> None:
        """Ends the window: no caller waits any longer."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._filling is not None:
            self._filling.cancel()
        if self._feed is not None:
            self._feed.close()

    def release(self, count: int) -> None:
        """Makes room for `count` more tasks."""
        self._room += count
        if self._room >= self._enough:
            self._fill()

    def _fill(self) -> None:
        """Submits a slice; large arrays and further slices follow while outcomes come."""
        if self._filling is not None:
            return
        slice_ = self._slice()
        if not slice_.has_large:
            self._submit(slice_)
        if slice_.has_large or slice_.more or self._may_be_fed():
            self._filling = asyncio.get_running_loop().create_task(self._fill_up(slice_))

    async def _fill_up(self, slice_: "_Slice") -> None:
        """Submits further slices while the first are in flight, or already answered."""
        try:
            if slice_.has_large:
                await self._submit_large(slice_)
            while slice_.more or await self._fed():
                await asyncio.sleep(0)
                slice_ = self._slice()
                if slice_.has_large:
                    await self._submit_large(slice_)
                else:
                    self._submit(slice_)
        except Exception as error:
            self._error = error
        finally:
            self._filling = None
            self._wake.set()

    def _may_be_fed(self) -> bool:
        return self._feed is not None and self._room > 0 and not self._feed.ended

    async def _fed(self) -> bool:
        """Whether a feed has brought more tasks."""
        return self._feed is not None and self._room > 0 and await self._feed.more(min(self._room, _SLICE))

    def _submit(self, slice_: "_Slice") -> None:
        if slice_.requests:
            self._submissions.each(slice_.requests, self)
            slice_.requests.clear()

    async def _submit_large(self, slice_: "_Slice") -> None:
        await self._submissions.each_large(slice_.requests, self)
        slice_.requests.clear()  # the next may be long in coming, and these hold arrays and futures

    def _slice(self) -> "_Slice":
        """The next tasks there is room for."""
        if self._room <= 0:
            return _NOTHING
        requests, size = self._drawn(min(self._room, _SLICE))
        self._room -= len(requests)
        self.unanswered += len(requests)
        return _Slice(requests, len(requests) == _SLICE or size >= _SLICE_BYTES, size >= _LARGE_BYTES)

    def _drawn(self, most: int) -> tuple[list[tuple[int, TaskRequest]], int]:
        """As many requests, or at least one whose arrays are enough for a slice; and the bytes of these arrays."""
        requests: list[tuple[int, TaskRequest]] = []
        size = 0
        for item in self._requests:
            requests.append(item)
            request = item[1]
            if isinstance(request, TaskRequest) and request.tensors:
                size += array_bytes(request)
            if len(requests) == most or size >= _SLICE_BYTES:
                break
            if self._own is not None:
                requests[-1] = self._own(item)
        return requests, size


class _Slice(NamedTuple):
    """Tasks that are submitted together."""

    requests: list[tuple[int, TaskRequest]]
    more: bool
    """Whether there may be more tasks that there is room for."""
    has_large: bool
    """Whether their arrays are better written by a thread."""


_NOTHING = _Slice([], False, False)


IN_FLIGHT = 1500
"""Tasks of one call that are in flight at once, by default."""
MOST_IN_FLIGHT = 1_000_000


class Run:
    """One call of a user: its tasks in a window, with one deadline for all of them."""

    def __init__(
        self, connection: Connection, requests: Iterator[tuple[int, TaskRequest]], limit: int, seconds: float
    ) -> None:
        if not isinstance(limit, int) or not 1 <= limit <= MOST_IN_FLIGHT:
            raise InvalidInput(f"limit is {limit!r}; it must be 1 to {MOST_IN_FLIGHT}", reason="INVALID_LIMIT")
        if not seconds > 0:
            raise InvalidInput(f"timeout is {seconds:g} s; it must be more than 0 s", reason="INVALID_TIMEOUT")
        self._window = Window(connection.submissions, requests, limit, asyncio.get_running_loop().time() + seconds)
        self._connection = connection
        self._seconds = seconds

    async def gather(self, count: int) -> list[Outcome]:
        """One outcome per task, by index, whatever happened to each."""
        window, outcomes = self._window, dict[int, Outcome]()
        try:
            while batch := await window.take():
                for outcome in batch:
                    outcomes[outcome.index] = outcome
                if len(outcomes) == count:
                    break
                window.release(len(batch))
        except TimeoutError:
            for task_id, index in self._leave():
                outcomes[index] = self._late(task_id, index)
        finally:
            self._leave()
        return [outcomes[index] if index in outcomes else self._late("", index) for index in range(count)]

    async def completed(self) -> AsyncGenerator[Outcome, None]:
        """Outcomes as they come."""
        try:
            while batch := await self._take():
                for outcome in batch:
                    yield outcome
                    self._window.release(1)
        finally:
            self._leave()

    async def in_order(self) -> AsyncGenerator[Outcome, None]:
        """Outcomes by index; those that come early are held, and count towards the limit."""
        early: dict[int, Outcome] = {}
        expected = 0
        try:
            while batch := await self._take():
                early.update((outcome.index, outcome) for outcome in batch)
                while expected in early:
                    yield early.pop(expected)
                    expected += 1
                    self._window.release(1)
        finally:
            self._leave()

    async def _take(self) -> list[Outcome]:
        try:
            return await self._window.take()
        except TimeoutError:
            late = len(self._leave())
            raise DeadlineExceeded(
                f"{late} tasks had no outcome within {self._seconds:g} s and were cancelled", tasks=late
            ) from None

    def _leave(self) -> list[tuple[str, int]]:
        """Cancels the tasks that have no outcome yet."""
        self._window.close()
        return self._connection.leave(self._window) if self._window.unanswered else []

    def _late(self, task_id: str, index: int) -> Outcome:
        what = f'task "{task_id}" had no outcome' if task_id else f"the task at {index} was not even submitted"
        error = DeadlineExceeded(f"{what} within {self._seconds:g} s; it was cancelled", task_id=task_id)
        return abandoned(task_id, index, error)


def enumerated(requests: Iterable[TaskRequest]) -> Iterator[tuple[int, TaskRequest]]:
    """Numbers a list in the order of its dependencies; any other iterable in its own order, read only when there is
    room."""
    if not isinstance(requests, (list, Sequence)):
        return enumerate(requests)
    return ((index, requests[index]) for index in parents_first(requests))


def listed(requests: Iterable[TaskRequest]) -> list[TaskRequest]:
    """All of them, as they were when they came."""
    return list(requests) if isinstance(requests, (list, tuple)) else [owned(request) for request in requests]
