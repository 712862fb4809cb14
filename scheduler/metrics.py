"""Every metric of the scheduler. Labels are bounded; no ids."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from .core.latency_histogram import LATENCY_BOUNDS

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
RETRIES = Counter("parlmesh_scheduler_retries_total", "Attempts that were retried.")
LOST_LEASES = Counter("parlmesh_scheduler_lost_leases_total", "Leases whose actor went away or fell silent.")
STRIKES = Counter("parlmesh_scheduler_strikes_total", "Bad answers that were counted against a node.")
QUARANTINED_NODES = Gauge("parlmesh_scheduler_quarantined_nodes", "Nodes that get no tasks because of bad answers.")
STALE_RESULTS = Counter(
    "parlmesh_scheduler_stale_results_total",
    "Results refused because their lease was no longer valid or their node was in quarantine.",
)
MOVED = Counter("parlmesh_scheduler_moved_tasks_total", "Assignments taken back before they started.")
REFUSED = Counter("parlmesh_scheduler_refused_requests_total", "Submissions refused as a whole, by reason.", ["reason"])
# Exported from the start, because a rate misses the step from no series to the first value.
REFUSED.labels("queue_full")
LEADER = Gauge("parlmesh_scheduler_leader", "1 while this scheduler leads, 0 while it stands by.")
DEPOSITIONS = Counter("parlmesh_scheduler_depositions_total", "Times that another scheduler took over from this one.")
EVENT_LOOP_LAG = Gauge(
    "parlmesh_scheduler_event_loop_lag_seconds", "Delay of the last tick; every stream waits that long."
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
    "parlmesh_scheduler_failed_decisions_total",
    "Errors after which the core may differ from its journal; the scheduler stops.",
)
UNREADABLE_RECORDS = Counter(
    "parlmesh_scheduler_unreadable_records_total", "Records of the journal that could not be read and were left out."
)

BLOB_BYTES = Gauge("parlmesh_scheduler_blob_bytes", "Bytes of large arrays kept beside the tasks.")
BLOB_SPARE_BYTES = Gauge(
    "parlmesh_scheduler_blob_spare_bytes", "Bytes of removed large arrays' files that are kept for reuse."
)
BLOBS_REMOVED = Counter(
    "parlmesh_scheduler_blobs_removed_total",
    "Large arrays that were removed: no longer needed, to make room, never named by a task, or lost.",
    ["reason"],
)


class CountedElsewhere(Collector):
    """A histogram that the core counts itself, because an observation per task would cost more than the task."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str] = ()) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        # By label values: one count per bound and one for all above, and the sum.
        self._series: dict[tuple[str, ...], tuple[Sequence[int], float]] = {}

    def set(self, series: Mapping[tuple[str, ...], tuple[Sequence[int], float]]) -> None:
        """Counts are copied, because the core keeps counting while a page is written."""
        self._series = {labels: (tuple(counts), total) for labels, (counts, total) in series.items()}

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, (counts, total) in self._series.items():
            buckets = zip((*map(str, LATENCY_BOUNDS), "+Inf"), accumulate(counts), strict=True)
            family.add_metric(labels, [(bound, float(seen)) for bound, seen in buckets], sum_value=total)
        yield family


DISPATCH_LATENCY = CountedElsewhere("parlmesh_scheduler_dispatch_latency_seconds", "Time from ready to leased.")
OUTCOME_LATENCY = CountedElsewhere(
    "parlmesh_scheduler_outcome_latency_seconds",
    "Time from submit to outcome, by kind and priority; at most 50 kinds and `other`.",
    ["kind", "priority"],
)
REGISTRY.register(DISPATCH_LATENCY)
REGISTRY.register(OUTCOME_LATENCY)
