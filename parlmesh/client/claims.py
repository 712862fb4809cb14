"""Outcomes of tasks submitted alone, kept until someone asks. Bounded: the oldest go first and are counted."""

import asyncio
from collections.abc import Sequence

from parlmesh.errors import DeadlineExceeded

from .outcomes import Outcome


class Claims:
    """The sink of `submit_task` and `submit_tasks`."""

    def __init__(self, *, most_outcomes: int, most_bytes: int) -> None:
        self._most_outcomes = most_outcomes
        self._most_bytes = most_bytes
        self._kept: dict[str, tuple[Outcome, int]] = {}
        self._bytes = 0
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self.dropped = 0

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Gives each to those who wait, or keeps it for the first who asks."""
        for outcome in outcomes:
            self._settle(outcome)

    def claim(self, task_id: str) -> Outcome | None:
        """The kept outcome, which is kept no longer."""
        return self._forget(task_id)

    async def wait(self, task_id: str, seconds: float) -> Outcome:
        """The outcome of a task that is known to be on its way."""
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(task_id, []).append(waiter)
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            raise no_outcome(task_id, seconds) from None
        finally:
            self._leave(task_id, waiter)

    def _settle(self, outcome: Outcome) -> None:
        waiters = self._waiters.pop(outcome.task_id, None)
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(outcome)
        if waiters:
            return
        self._kept[outcome.task_id] = (outcome, outcome.size_bytes)
        self._bytes += outcome.size_bytes
        while len(self._kept) > self._most_outcomes or self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))
            self.dropped += 1

    def _leave(self, task_id: str, waiter: asyncio.Future[Outcome]) -> None:
        waiters = self._waiters.get(task_id)
        if waiters is not None:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[task_id]

    def _forget(self, task_id: str) -> Outcome | None:
        outcome, size = self._kept.pop(task_id, (None, 0))
        self._bytes -= size
        return outcome


def no_outcome(task_id: str, seconds: float) -> DeadlineExceeded:
    """The task goes on: only the wait is over."""
    return DeadlineExceeded(
        f'task "{task_id}" has no outcome after {seconds:g} s; it goes on: ask again or cancel it', task_id=task_id
    )
