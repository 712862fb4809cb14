"""A sliding window over the tasks of one call: a new one goes out for every outcome that was taken, nothing waits for
a batch to be full or empty."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from .outcomes import Outcome
from .pending import Sink
from .requests import TaskRequest

_SLICE = 256
"""Tasks that are encoded at once before those that wait to be written get their turn."""


class Submits(Protocol):
    """What a window needs of a link."""

    def submit_each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Answers every index with one outcome at the sink."""
        ...


class Window:
    """Holds at most `limit` tasks that are submitted and not yet released by the one who reads outcomes."""

    def __init__(self, link: Submits, requests: Iterator[tuple[int, TaskRequest]], limit: int, deadline: float) -> None:
        self._link = link
        self._requests = requests
        self._room = limit
        self._deadline = deadline
        self._alarm: asyncio.TimerHandle | None = None
        self._expired = False
        # Worth a request of its own while the reader is still busy with earlier outcomes.
        self._enough = max(1, limit // 8)
        self.unanswered = 0
        self._ready: list[Outcome] = []
        self._wake = asyncio.Event()

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Called by the link."""
        self.unanswered -= len(outcomes)
        self._ready += outcomes
        self._wake.set()

    async def take(self) -> list[Outcome]:
        """Submits what there is room for, then waits for outcomes and returns all there are; none at the end.

        TimeoutError when the loop's time passes the deadline; `close` must follow.
        """
        more = self._fill() == _SLICE
        while more:
            # The first are on their way while the next are encoded.
            await asyncio.sleep(0)
            more = self._fill() == _SLICE
        if not self._ready and self.unanswered:
            await self._settled()
        ready, self._ready = self._ready, []
        return ready

    async def _settled(self) -> None:
        if self._alarm is None:
            # One for the whole window: a timeout around every wait costs more than the wait itself.
            self._alarm = asyncio.get_running_loop().call_at(self._deadline, self._expire)
        if not self._expired:
            self._wake.clear()
            await self._wake.wait()
        if not self._ready:
            raise TimeoutError

    def _expire(self) -> None:
        self._expired = True
        self._wake.set()

    def close(self) -> None:
        """Nobody will wait any more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def release(self, count: int) -> None:
        """Makes room for that many more tasks."""
        self._room += count
        if self._room >= self._enough:
            self._fill()

    def _fill(self) -> int:
        """Submits what there is room for, at most a slice; how many."""
        requests = list(islice(self._requests, min(self._room, _SLICE))) if self._room > 0 else []
        self._room -= len(requests)
        self.unanswered += len(requests)
        if requests:
            self._link.submit_each(requests, self)
        return len(requests)
