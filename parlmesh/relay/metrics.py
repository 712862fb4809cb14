"""Prometheus metrics of a relay; docs/metrics.md lists the same names."""

from prometheus_client import Counter, Gauge

from parlmesh.distribution.metrics import distribution_metrics

POLICIES = distribution_metrics("relay")
REQUESTS = Counter(
    "parlmesh_relay_requests_total", "Policies requested, by whether they were held, fetched or failed.", ["result"]
)
FETCHED_BYTES = Counter("parlmesh_relay_fetched_bytes_total", "Bytes of policies fetched from the learner.")
HELD_BYTES = Gauge("parlmesh_relay_held_bytes", "Bytes of policies held.")
HELD = Gauge("parlmesh_relay_held_policies", "Policies held.")
LEARNER_SERVES = Gauge("parlmesh_relay_learner_serves", "1 while the learner reports that it serves, otherwise 0.")
