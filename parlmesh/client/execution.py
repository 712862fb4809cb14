"""Many tasks at once: all outcomes in input order, or each as it completes. One failure is one error among values."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from parlmesh.errors import DeadlineExceeded, InvalidInput

from .link import Link
from .ordering import parents_first
from .outcomes import Outcome, abandoned
from .requests import TaskRequest
from .window import Window

MOST_IN_FLIGHT = 1_000_000


async def gather(link: Link, requests: Sequence[TaskRequest], limit: int, seconds: float) -> list[Outcome]:
    """One outcome per request, in the order of the requests, whatever happened to each."""
    run = _Run(link, _ordered(requests), limit, seconds)
    outcomes: dict[int, Outcome] = {}
    try:
        while batch := await run.window.take(run.deadline):
            for outcome in batch:
                outcomes[outcome.index] = outcome
            run.window.release(len(batch))
    except TimeoutError:
        outcomes |= {index: run.late(task_id, index) for task_id, index in run.leave()}
    finally:
        run.leave()
    return [outcomes[index] if index in outcomes else run.late("", index) for index in range(len(requests))]


async def completed(link: Link, requests: Iterable[TaskRequest], limit: int, seconds: float) -> AsyncIterator[Outcome]:
    """Outcomes as they come. A list is ordered by its dependencies; an iterator is read as there is room."""
    run = _Run(link, _ordered(requests) if isinstance(requests, Sequence) else enumerate(requests), limit, seconds)
    try:
        while batch := await run.take():
            for outcome in batch:
                yield outcome
                run.window.release(1)
    finally:
        run.leave()


async def in_order(link: Link, requests: Iterable[TaskRequest], limit: int, seconds: float) -> AsyncIterator[Outcome]:
    """Outcomes in input order; those that come early are held, and count towards the limit."""
    run = _Run(link, enumerate(requests), limit, seconds)
    early: dict[int, Outcome] = {}
    expected = 0
    try:
        while batch := await run.take():
            early.update((outcome.index, outcome) for outcome in batch)
            while expected in early:
                yield early.pop(expected)
                expected += 1
                run.window.release(1)
    finally:
        run.leave()


class _Run:
    """One call: its window and its deadline."""

    def __init__(self, link: Link, requests: Iterator[tuple[int, TaskRequest]], limit: int, seconds: float) -> None:
        if not 1 <= limit <= MOST_IN_FLIGHT:
            raise InvalidInput(f"limit is {limit!r}; it must be 1 to {MOST_IN_FLIGHT}", reason="INVALID_LIMIT")
        if not seconds > 0:
            raise InvalidInput(f"timeout is {seconds!r} s; it must be more than 0 s", reason="INVALID_TIMEOUT")
        self.window = Window(link, requests, limit)
        self.deadline = asyncio.get_running_loop().time() + seconds
        self._link = link
        self._seconds = seconds

    async def take(self) -> list[Outcome]:
        try:
            return await self.window.take(self.deadline)
        except TimeoutError:
            unanswered = len(self.leave())
            raise DeadlineExceeded(
                f"{unanswered} tasks had no outcome within {self._seconds:g} s and were cancelled", tasks=unanswered
            ) from None

    def leave(self) -> list[tuple[str, int]]:
        """Cancels what has no outcome yet."""
        return self._link.leave(self.window) if self.window.unanswered else []

    def late(self, task_id: str, index: int) -> Outcome:
        what = f'task "{task_id}" had no outcome within' if task_id else "it was not even submitted within"
        error = DeadlineExceeded(f"{what} {self._seconds:g} s and was given up", task_id=task_id)
        return abandoned(task_id, index, error)


def _ordered(requests: Sequence[TaskRequest]) -> Iterator[tuple[int, TaskRequest]]:
    return ((index, requests[index]) for index in parents_first(requests))
