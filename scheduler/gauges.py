"""Copies the core's numbers to the metrics page, once a second; the core itself knows no Prometheus."""

from collections import Counter

from prometheus_client import Counter as Total

from . import metrics
from .core.actors.placement import ActorState
from .core.core import Core
from .core.task import Priority, TaskState

EXPORT_SECONDS = 1.0
UNFINISHED = (TaskState.WAITING, TaskState.QUEUED, TaskState.RUNNING)
_WORDS = {int(priority): priority.name.lower() for priority in Priority}
FINAL = tuple(state for state in TaskState if state not in UNFINISHED)


class Exporter:
    """Remembers the last value of each counter, because counters only take increments."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told: dict[Total, int] = {}
        self._next = 0.0

    def export(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + EXPORT_SECONDS
        life = self._core.life
        statistics, queue = life.statistics, life.queue
        for state in UNFINISHED:
            metrics.TASKS.labels(state.name.lower()).set(statistics.by_state[state])
        for priority in Priority:
            metrics.READY.labels(priority.name.lower()).set(queue.ready_by_priority[priority])
        oldest = queue.oldest()
        metrics.OLDEST_READY.set(0.0 if oldest is None else now - oldest.submit_time)
        actors = list(life.fleet.actors.values())
        states = Counter(actor.state for actor in actors)
        for actor_state in ActorState:
            metrics.ACTORS.labels(actor_state.name.lower()).set(states[actor_state])
        metrics.SLOTS.set(sum(actor.slots for actor in actors if actor.state is ActorState.READY))
        metrics.LEASES.set(sum(len(actor.leases) for actor in actors))
        metrics.KEPT.set(len(life.retention))
        for state in FINAL:
            self._tell(metrics.OUTCOMES.labels(state.name.lower()), statistics.by_state[state])
        self._tell(metrics.SUBMITTED, statistics.accepted)
        self._tell(metrics.RETRIES, statistics.retried)
        self._tell(metrics.LOST_LEASES, statistics.lost_leases)
        strikes = self._core.sessions.quarantine.strikes
        metrics.QUARANTINED_NODES.set(len(strikes.quarantines))
        self._tell(metrics.STRIKES, strikes.total)
        self._tell(metrics.STALE_RESULTS, statistics.stale_results)
        self._tell(metrics.MOVED, statistics.moved)
        metrics.DISPATCH_LATENCY.set({(): (statistics.dispatch.counts, statistics.dispatch.total)})
        metrics.OUTCOME_LATENCY.set(
            {
                (kind, _WORDS[priority]): (latency.counts, latency.total)
                for (kind, priority), latency in statistics.outcome_latencies.items()
            }
        )

    def _tell(self, counter: Total, total: int) -> None:
        counter.inc(total - self._told.get(counter, 0))
        self._told[counter] = total
