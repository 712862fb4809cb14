"""What Prometheus scrapes from the learner; docs/metrics.md lists the same names."""

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from .experience import ExperienceQueue

POLICY_VERSION = Gauge("parlmesh_learner_policy_version", "Newest published policy version.")
STEPS = Counter("parlmesh_learner_trained_steps_total", "Environment steps trained on.")
UPDATES = Counter("parlmesh_learner_updates_total", "Updates by result.", ["result"])
IDLE_SECONDS = Counter("parlmesh_learner_idle_seconds_total", "Seconds the trainer waited for experience.")
EVALUATIONS = Counter("parlmesh_learner_evaluations_total", "Evaluations by result.", ["result"])
EVALUATION_RETURN = Gauge("parlmesh_learner_evaluation_return", "Mean return of the last evaluation.")
ROLLOUTS = Counter("parlmesh_learner_rollout_tasks_total", "Rollout tasks by outcome.", ["outcome"])
POLICY_LAG = Histogram(
    "parlmesh_learner_policy_lag_versions",
    "Versions between a trained trajectory's policy and the policy it trained.",
    buckets=(0, 1, 2, 4, 8, 16, 32),
)


class QueueCollector(Collector):
    """Reads the queue's own counters at scrape time, so the two can never disagree."""

    def __init__(self, queue: ExperienceQueue) -> None:
        self._queue = queue

    def collect(self) -> list[Metric]:
        """The queue as it stands."""
        queue = self._queue
        dropped = CounterMetricFamily(
            "parlmesh_learner_trajectories_dropped", "Trajectories refused or dropped, by reason.", labels=["reason"]
        )
        for reason, count in queue.dropped.items():
            dropped.add_metric([reason.lower()], count)
        return [
            CounterMetricFamily("parlmesh_learner_trajectories_received", "Trajectories received.", queue.received),
            CounterMetricFamily("parlmesh_learner_trajectories_trained", "Trajectories trained on.", queue.trained),
            GaugeMetricFamily("parlmesh_learner_trajectories_queued", "Trajectories that wait.", len(queue)),
            dropped,
        ]


def watch_queue(queue: ExperienceQueue) -> QueueCollector:
    """Shows the queue's numbers until `unwatch_queue`."""
    collector = QueueCollector(queue)
    REGISTRY.register(collector)
    return collector


def unwatch_queue(collector: QueueCollector) -> None:
    """Takes the numbers off the page."""
    REGISTRY.unregister(collector)
