"""Asks the scheduler once a second for all open pages together, and rarely while no page is open."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parlmesh.errors import FleetError
from parlmesh.orchestration.report.trace import Attempt, attempts_in
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb

from .fleet_calls import Fleet
from .fleet_history import SAMPLE_SECONDS, History, Sample

MOST_STREAMS = 100
"""Live pages at once; any further one is asked to try again later."""
LOOK_SECONDS = 1.0
STREAM_SECONDS = 10.0
TRACE_SECONDS = 3
MOST_ATTEMPTS = 400
"""Newest attempts fetched at each look; a faster fleet shows only these."""
RATES = 60
_CLOCK_SKEW_SECONDS = 2.0

log = get_logger("parlmesh.dashboard")


class Pulse:
    """The pages' knowledge of the scheduler, replaced at each read. While no page is open, it only takes samples."""

    def __init__(self, fleet: Fleet, history: History, wall: Callable[[], float] = time.time) -> None:
        self._fleet = fleet
        self._history = history
        self._wall = wall
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._looked = asyncio.Condition()
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._completed: dict[str, tuple[float, int]] = {}
        self._full_look = -1e9
        self.looks = 0
        self.trouble = ""
        """Why the last read failed."""
        self.statistics: pb.GetStatisticsResponse | None = None
        self.actors: list[pb.Actor] = []
        self.rates: dict[str, deque[float]] = {}
        """Tasks per second by actor, over the last reads."""
        self.skew_seconds = 0.0
        """How far the scheduler's clock is ahead, if it is enough to matter."""

    @property
    def history(self) -> History:
        return self._history

    @property
    def attempts(self) -> list[Attempt]:
        """Attempts that ended within the stream's window."""
        return list(self._attempts.values())

    def now(self) -> float:
        """The time by the scheduler's clock."""
        return self._wall() + self.skew_seconds

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks every second while it is entered."""
        self._watchers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def fresh(self) -> None:
        """Waits for a full look, unless there was one recently or the scheduler is away."""
        for _ in range(2):
            old = time.monotonic() - self._full_look > 2 * LOOK_SECONDS
            if not old or not self._fleet.has_scheduler or self.trouble:
                return
            # The first may have started before a page was open and only take a sample.
            await self.next(self.looks)

    async def next(self, seen: int) -> int:
        """Waits for a look after that one."""
        async with self._looked:
            await self._looked.wait_for(lambda: self.looks > seen)
        return self.looks

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            self._wanted.clear()
            started, watched = time.monotonic(), self._watchers > 0
            await self.look()
            if self._watchers and not watched:
                # A page was opened in the meantime and needs more than a sample.
                continue
            rest = LOOK_SECONDS - (time.monotonic() - started)
            if self._watchers:
                # At least half a read's time between reads, however slowly the scheduler answers.
                await asyncio.sleep(max(rest, LOOK_SECONDS / 2))
                continue
            # Ends early when a page opens, which need not wait for the next sample.
            waiting = asyncio.ensure_future(self._wanted.wait())
            await asyncio.wait([waiting], timeout=SAMPLE_SECONDS)
            waiting.cancel()

    async def look(self) -> None:
        """Asks once and notifies all waiters."""
        if self._fleet.has_scheduler:
            try:
                await self._ask()
                self.trouble = ""
            except FleetError as error:
                if not self.trouble:
                    log.warning("scheduler_away", why=error.message)
                self.trouble, self.statistics, self.actors = error.message, None, []
        async with self._looked:
            self.looks += 1
            self._looked.notify_all()

    async def _ask(self) -> None:
        self.statistics = await self._fleet.statistics()
        if self._watchers:
            self.actors = await self._fleet.actors()
            self._take_rates(self._wall())
            request = pb.GetTraceRequest(seconds=TRACE_SECONDS, max_attempts=MOST_ATTEMPTS)
            self._take_attempts(attempts_in(await self._fleet.trace(request)))
            self._full_look = time.monotonic()
        wall = self._wall()
        if self._history.due(wall):
            numbers = self.statistics
            sample = Sample(
                wall,
                numbers.throughput_tps,
                numbers.queued_tasks,
                numbers.running_tasks,
                numbers.ready_workers,
                numbers.failed_tasks,
            )
            await asyncio.to_thread(self._history.add, sample)

    def _take_rates(self, now: float) -> None:
        rates: dict[str, deque[float]] = {}
        completed: dict[str, tuple[float, int]] = {}
        for actor in self.actors:
            done = actor.completed_tasks + actor.failed_tasks
            before, count = self._completed.get(actor.actor_id, (now, done))
            line = rates[actor.actor_id] = self.rates.get(actor.actor_id) or deque(maxlen=RATES)
            if now > before:
                # A restarted actor counts from 0 again.
                line.append(max(0, done - count) / (now - before))
            completed[actor.actor_id] = (now, done)
        self.rates, self._completed = rates, completed

    def _take_attempts(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            self._attempts[attempt.task_id, attempt.number] = attempt
        if attempts:
            ahead = max(attempt.end for attempt in attempts) - self._wall()
            if ahead > _CLOCK_SKEW_SECONDS or ahead < -_CLOCK_SKEW_SECONDS - TRACE_SECONDS:
                self.skew_seconds = ahead
        oldest = self.now() - STREAM_SECONDS
        self._attempts = {key: attempt for key, attempt in self._attempts.items() if attempt.end >= oldest}
