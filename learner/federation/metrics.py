"""Prometheus metrics of federations; docs/metrics.md lists the same names."""

from prometheus_client import Counter, Gauge, Histogram

ROUNDS = Counter("parlmesh_learner_federation_rounds_total", "Federated rounds that ended, by state.", ["state"])
UPDATES = Counter(
    "parlmesh_learner_federation_updates_total", "Federated updates, by result (accepted, or the reason).", ["result"]
)
UNLISTED = Counter(
    "parlmesh_learner_federation_unlisted_refusals_total",
    "Refused updates that no history lists: from callers that may not send them, or more than a round lists.",
)
UPDATE_BYTES = Counter("parlmesh_learner_federation_update_bytes_total", "Bytes of federated updates received.")
ROUND_SECONDS = Histogram(
    "parlmesh_learner_federation_round_seconds",
    "Time from the start of a federated round to its new model.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
PAUSES = Counter(
    "parlmesh_learner_federation_pauses_total",
    "Times that a federation paused to wait for nodes, the scheduler or the disk.",
)
RUNNING = Gauge("parlmesh_learner_federations_running", "Federations that have not ended.")
EPSILON = Gauge("parlmesh_learner_federation_epsilon", "Privacy spent up to the last private round (epsilon).")
