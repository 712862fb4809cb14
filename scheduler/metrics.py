"""Every metric of the scheduler. Labels are bounded; no ids."""

from prometheus_client import Counter, Gauge, Histogram

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
