"""Every metric of the scheduler. Labels are bounded; no ids."""

from prometheus_client import Gauge

EVENT_LOOP_LAG = Gauge(
    "parlmesh_scheduler_event_loop_lag_seconds", "How late the last tick came: what every stream waits for."
)
