"""Prometheus metrics of the learner; docs/metrics.md lists the same names."""

from collections import Counter as Tally
from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

from parlmesh.distribution.metrics import distribution_metrics

from .experience import ExperienceQueue

if TYPE_CHECKING:
    from .runs.runs import Runs

POLICY_VERSION = Gauge("parlmesh_learner_policy_version", "Newest published policy version.")
STEPS = Counter("parlmesh_learner_trained_steps_total", "Environment steps trained on.")
UPDATES = Counter("parlmesh_learner_updates_total", "Updates by result.", ["result"])
RANKS_LOST = Counter(
    "parlmesh_learner_ranks_lost_total", "Times that processes sharing a run's gradients were lost and replaced."
)
IDLE_SECONDS = Counter("parlmesh_learner_idle_seconds_total", "Seconds the learner waited for experience.")
EVALUATIONS = Counter("parlmesh_learner_evaluations_total", "Evaluations by result.", ["result"])
EVALUATION_RETURN = Gauge("parlmesh_learner_evaluation_return", "Mean return of the last evaluation.")
GAMES = Counter("parlmesh_learner_games_total", "Games of rollouts, by opponent and result.", ["opponent", "result"])
GAMES_REFUSED = Counter(
    "parlmesh_learner_games_refused_total",
    "Counts of games that were refused: impossible, or against a version that is no opponent.",
)
ROLLOUTS = Counter("parlmesh_learner_rollout_tasks_total", "Rollout tasks by outcome.", ["outcome"])
IDLE_RATIO = Gauge(
    "parlmesh_learner_idle_ratio", "Share of the last seconds in which the learner waited for experience."
)
ACTORS_IDLE_RATIO = Gauge(
    "parlmesh_learner_actors_idle_ratio",
    "Share of the last seconds in which the slots that sent trajectories waited before they collected.",
)
EXPERIENCE_AGE = Histogram(
    "parlmesh_learner_experience_age_seconds",
    "Seconds from the last step of a trajectory, by the actor's clock, to the end of the update that it trained.",
    buckets=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0),
)
POLICY_LAG = Histogram(
    "parlmesh_learner_policy_lag_versions",
    "Versions between a trained trajectory's policy and the policy it trained.",
    buckets=(0, 1, 2, 4, 8, 16, 32),
)
REPLAY_STEPS = Gauge("parlmesh_learner_replay_steps", "Steps in the replay of the run that updated last.")
REPLAY_SAMPLED = Counter("parlmesh_learner_replay_sampled_steps_total", "Steps drawn from the replay.")
REPLAY_EVICTED = Counter("parlmesh_learner_replay_evicted_steps_total", "Steps evicted from the replay.")


def note_replay(values: Mapping[str, float]) -> None:
    """Counts the replay's figures in an update's report; algorithms without a replay report none."""
    if "replay/steps" in values:
        REPLAY_STEPS.set(values["replay/steps"])
        REPLAY_SAMPLED.inc(values["replay/sampled_steps"])
        REPLAY_EVICTED.inc(values["replay/evicted_steps"])


POLICIES = distribution_metrics("learner")


class RunsCollector(Collector):
    """Reads the runs' own counters at scrape time, so the two can never disagree. Sums over all runs."""

    def __init__(self, runs: "Runs") -> None:
        self._runs = runs

    def collect(self) -> list[Metric]:
        """Metrics of the runs' present state."""
        with ExperienceQueue.books:
            return self._collected()

    def _collected(self) -> list[Metric]:
        past, queues = self._runs.past, self._runs.queues()
        reasons = sum((queue.dropped for queue in queues), Tally(past.dropped))
        dropped = CounterMetricFamily(
            "parlmesh_learner_trajectories_dropped", "Trajectories refused or dropped, by reason.", labels=["reason"]
        )
        for reason, count in reasons.items():
            dropped.add_metric([reason.lower()], count)
        received = past.received + sum(queue.received for queue in queues)
        trained = past.trained + sum(queue.trained for queue in queues)
        states = GaugeMetricFamily("parlmesh_learner_runs", "Known runs, by state.", labels=["state"])
        for state, count in Tally(entry.state.value for entry in self._runs.newest_first()).items():
            states.add_metric([state], count)
        obstructed = GaugeMetricFamily(
            "parlmesh_learner_runs_obstructed", "Runs that wait, by what for.", labels=["by"]
        )
        for kind, count in Tally(kind for entry in self._runs.newest_first() for kind in entry.obstacles).items():
            obstructed.add_metric([kind], count)
        strikes = CounterMetricFamily(
            "parlmesh_learner_strikes", "Trajectories that no honest actor sends.", labels=["sender", "reason"]
        )
        for sender, reasons_of in self._runs.strikes.counts.items():
            for reason, count in reasons_of.items():
                strikes.add_metric([sender, reason.lower()], count)
        waiting = sum(len(queue) + queue.training for queue in queues)
        return [
            CounterMetricFamily("parlmesh_learner_trajectories_received", "Trajectories received.", received),
            CounterMetricFamily("parlmesh_learner_trajectories_trained", "Trajectories trained on.", trained),
            GaugeMetricFamily(
                "parlmesh_learner_trajectories_queued", "Trajectories that wait or are being trained on.", waiting
            ),
            dropped,
            states,
            obstructed,
            strikes,
        ]


def watch_runs(runs: "Runs") -> RunsCollector:
    """Shows the runs' numbers until `unwatch_runs`."""
    collector = RunsCollector(runs)
    REGISTRY.register(collector)
    return collector


def unwatch_runs(collector: RunsCollector) -> None:
    """Stops showing the runs' numbers."""
    REGISTRY.unregister(collector)
