"""Many tasks at once: all outcomes in input order, or each as it completes. One failure is one error among values."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

from parlmesh.errors import DeadlineExceeded, InvalidInput

from .connection import Link
from .ordering import parents_first
from .outcomes import Outcome, abandoned
from .requests import TaskRequest
from .window import Window

MOST_IN_FLIGHT = 1_000_000


class Run:
    """One call of a user: its tasks in a window, and the deadline of all of them."""

    def __init__(self, link: Link, requests: Iterator[tuple[int, TaskRequest]], limit: int, seconds: float) -> None:
        if not isinstance(limit, int) or not 1 <= limit <= MOST_IN_FLIGHT:
            raise InvalidInput(f"limit is {limit!r}; it must be 1 to {MOST_IN_FLIGHT}", reason="INVALID_LIMIT")
        if not seconds > 0:
            raise InvalidInput(f"timeout is {seconds!r} s; it must be more than 0 s", reason="INVALID_TIMEOUT")
        self._window = Window(link, requests, limit, asyncio.get_running_loop().time() + seconds)
        self._link = link
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
        """Cancels what has no outcome yet."""
        self._window.close()
        return self._link.leave(self._window) if self._window.unanswered else []

    def _late(self, task_id: str, index: int) -> Outcome:
        what = f'task "{task_id}" had no outcome' if task_id else f"the task at {index} was not even submitted"
        error = DeadlineExceeded(f"{what} within {self._seconds:g} s; it was given up", task_id=task_id)
        return abandoned(task_id, index, error)


def enumerated(requests: Iterable[TaskRequest]) -> Iterator[tuple[int, TaskRequest]]:
    """A list in the order of its dependencies; anything else as it comes, read only as there is room."""
    if not isinstance(requests, (list, Sequence)):
        return enumerate(requests)
    return ((index, requests[index]) for index in parents_first(requests))
