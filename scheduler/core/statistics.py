"""Counts since the start, rates over the last minute, and the share of busy slots. Time comes in as an argument."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

from .actors.placement import Actor, ActorState
from .latency_histogram import LATENCY_BOUNDS, Histogram
from .task import QUEUED, RUNNING, WAITING, TaskState

WINDOW_SECONDS = 60
SMOOTHING = 0.05
# Kinds counted apart; all further ones are counted as one, because submitters may invent any number.
MOST_KINDS = 50
OTHER_KINDS = "other"


class Window:
    """Count and sum over the last minute, in buckets of one second."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int, float]] = deque()
        self._second = -1
        self._count = 0
        self._sum = 0.0

    def add(self, now: float, value: float, count: int = 1) -> None:
        """`value` is the sum of `count` values."""
        second = int(now)
        if second != self._second:
            self._close(second)
        self._count += count
        self._sum += value

    def totals(self, now: float) -> tuple[int, float]:
        self._close(int(now))
        return self._count + sum(b[1] for b in self._buckets), self._sum + sum(b[2] for b in self._buckets)

    def _close(self, second: int) -> None:
        if second != self._second:
            if self._count:
                self._buckets.append((self._second, self._count, self._sum))
            self._second, self._count, self._sum = second, 0, 0.0
        while self._buckets and self._buckets[0][0] <= second - WINDOW_SECONDS:
            self._buckets.popleft()


class Statistics:
    """The numbers behind GetStatistics and the metrics."""

    def __init__(self, now: float) -> None:
        self.start = now
        self.accepted = 0
        # By TaskState: tasks now in the first three states, and all that have reached the final ones since the start.
        self.by_state = [0] * (max(TaskState) + 1)
        self.unfinished_bytes = 0
        self.retried = 0
        self.lost_leases = 0
        self.stale_results = 0
        self.moved = 0
        self.forgotten = 0
        self.kind_seconds: dict[str, float] = {}
        # Seconds from ready to leased.
        self.dispatch = Histogram()
        # Seconds from submit to outcome, by kind and priority.
        self.outcome_latencies: dict[tuple[str, int], Histogram] = {}
        self._kinds: set[str] = set()
        self._outcomes = Window()

    @property
    def unfinished(self) -> int:
        return self.by_state[WAITING] + self.by_state[QUEUED] + self.by_state[RUNNING]

    def count_outcomes(self, kind: str, priority: int, latencies: Sequence[float], now: float) -> None:
        """Counts tasks of one kind and priority that end now, given their seconds since submit."""
        # Counted together: a call per task would lower the tasks per second.
        histogram, total = self._outcome_latency(kind, priority), sum(latencies)
        counts = histogram.counts
        for seconds in latencies:
            counts[bisect_left(LATENCY_BOUNDS, seconds)] += 1
        histogram.total += total
        self._outcomes.add(now, total, len(latencies))

    def _outcome_latency(self, kind: str, priority: int) -> Histogram:
        if kind not in self._kinds:
            if len(self._kinds) < MOST_KINDS:
                self._kinds.add(kind)
            else:
                kind = OTHER_KINDS
        found = self.outcome_latencies.get((kind, priority))
        if found is None:
            found = self.outcome_latencies[kind, priority] = Histogram()
        return found

    def count_runs(self, kind: str, count: int, mean: float) -> float:
        """Counts runs of one kind; returns the fleet's mean for it before them, or theirs if they are the first."""
        before = self.kind_seconds.get(kind)
        if before is None:
            before = mean
        self.kind_seconds[kind] = before + (1.0 - (1.0 - SMOOTHING) ** count) * (mean - before)
        return before

    def rate(self, now: float) -> float:
        """Outcomes per second over the last minute, or since the start when that is shorter."""
        return self._outcomes.totals(now)[0] / max(1.0, min(WINDOW_SECONDS, now - self.start))

    def mean_latency(self, now: float) -> float:
        count, seconds = self._outcomes.totals(now)
        return seconds / count if count else 0.0


def worker_utilization(actors: Iterable[Actor]) -> float:
    """Share of the slots of READY actors that run a task; 0 without such actors."""
    ready = [actor for actor in actors if actor.state is ActorState.READY]
    slots = sum(actor.slots for actor in ready)
    return sum(actor.running() for actor in ready) / slots if slots else 0.0
