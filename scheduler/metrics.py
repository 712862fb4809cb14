"""Every metric of the scheduler. Labels are bounded; no ids."""

from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

TASKS = Gauge("parlmesh_scheduler_tasks", "Unfinished tasks, by state.", ["state"])
READY = Gauge("parlmesh_scheduler_ready_tasks", "Tasks that wait for a slot, by priority.", ["priority"])
OLDEST_READY = Gauge(
    "parlmesh_scheduler_oldest_ready_age_seconds",
    "Age of the ready task that was submitted first; 0 when there is none.",
)
ACTORS = Gauge("parlmesh_scheduler_actors", "Known actors, by state.", ["state"])
SLOTS = Gauge("parlmesh_scheduler_slots", "Slots of READY actors.")
LEASES = Gauge("parlmesh_scheduler_leases", "Leases held by actors.")
KEPT = Gauge("parlmesh_scheduler_finished_tasks", "Finished tasks that can still be asked for.")
SUBMITTED = Counter("parlmesh_scheduler_submitted_tasks_total", "Tasks accepted.")
OUTCOMES = Counter("parlmesh_scheduler_outcomes_total", "Tasks that ended, by final state.", ["state"])
RETRIES = Counter("parlmesh_scheduler_retries_total", "Attempts that were followed by another.")
LOST_LEASES = Counter("parlmesh_scheduler_lost_leases_total", "Leases whose actor went away or fell silent.")
STRIKES = Counter("parlmesh_scheduler_strikes_total", "Bad answers that were counted against a node.")
QUARANTINED_NODES = Gauge("parlmesh_scheduler_quarantined_nodes", "Nodes that get nothing because of bad answers.")
STALE_RESULTS = Counter(
    "parlmesh_scheduler_stale_results_total", "Results refused because their lease had been given away."
)
MOVED = Counter("parlmesh_scheduler_moved_tasks_total", "Assignments taken back before they started.")
REFUSED = Counter("parlmesh_scheduler_refused_requests_total", "Submits refused whole, by reason.", ["reason"])
EVENT_LOOP_LAG = Gauge(
    "parlmesh_scheduler_event_loop_lag_seconds", "How late the last tick came: what every stream waits for."
)
COMMIT_SECONDS = Histogram(
    "parlmesh_scheduler_commit_seconds",
    "Time of one group commit of the journal.",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
COMMIT_RECORDS = Histogram(
    "parlmesh_scheduler_commit_records",
    "Records in one group commit.",
    buckets=(1, 4, 16, 64, 256, 1024, 4096, 16384),
)
COMMIT_FAILURES = Counter("parlmesh_scheduler_commit_failures_total", "Commits that failed and are tried again.")

FAILED_DECISIONS = Counter(
    "parlmesh_scheduler_failed_decisions_total", "Errors after which the core may differ from its journal; it stops."
)
UNREADABLE_RECORDS = Counter(
    "parlmesh_scheduler_unreadable_records_total", "Records of the journal that could not be read and were left out."
)


class DispatchLatency(Collector):
    """A histogram that the core counts itself, because an observation per task would cost more than the task."""

    def __init__(self) -> None:
        self._bounds: Sequence[float] = ()
        self._counts: Sequence[int] = ()
        self._sum = 0.0

    def set(self, bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
        """`counts` has one entry per bound and one for all above."""
        self._bounds, self._counts, self._sum = bounds, tuple(counts), total

    def collect(self) -> Iterator[HistogramMetricFamily]:
        buckets: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts or (0,), strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(seen)))
        yield HistogramMetricFamily(
            "parlmesh_scheduler_dispatch_latency_seconds",
            "Time from ready to leased.",
            buckets=buckets,
            sum_value=self._sum,
        )


DISPATCH_LATENCY = DispatchLatency()
REGISTRY.register(DISPATCH_LATENCY)
