"""Recording and alerting rules for Prometheus. An alert is a symptom to act on, with a link to a runbook."""

from dataclasses import dataclass
from typing import Any

# Named as Prometheus advises: the remaining labels, the metric, the operation.
RECORDED: dict[str, str] = {
    "fleet:parlmesh_backlog_tasks:sum": (
        "sum by (fleet) (parlmesh_scheduler_ready_tasks) + sum by (fleet) (parlmesh_scheduler_leases)"
    ),
    "fleet_state:parlmesh_outcomes:rate5m": "sum by (fleet, state) (rate(parlmesh_scheduler_outcomes_total[5m]))",
    "fleet:parlmesh_outcome_failures:ratio_rate5m": (
        'sum by (fleet) (fleet_state:parlmesh_outcomes:rate5m{state=~"failed|quarantined"})'
        " / sum by (fleet) (fleet_state:parlmesh_outcomes:rate5m)"
    ),
    "fleet:parlmesh_dispatch_latency_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (fleet, le) (rate(parlmesh_scheduler_dispatch_latency_seconds_bucket[5m])))"
    ),
    "fleet_kind_priority:parlmesh_outcome_latency_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (fleet, kind, priority, le)"
        " (rate(parlmesh_scheduler_outcome_latency_seconds_bucket[5m])))"
    ),
    "fleet_kind:parlmesh_run_seconds:p99_5m": (
        "histogram_quantile(0.99, sum by (fleet, kind, le) (rate(parlmesh_actor_run_seconds_bucket[5m])))"
    ),
    "fleet:parlmesh_trained_steps:rate5m": "sum by (fleet) (rate(parlmesh_learner_trained_steps_total[5m]))",
    "fleet_service:parlmesh_rpc_refused:rate5m": "sum by (fleet, service) (rate(parlmesh_rpc_refused_total[5m]))",
}


@dataclass(frozen=True)
class Alert:
    """One alert; its name in lower case is its heading in the runbooks."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str


ALERTS = (
    Alert(
        "ParlmeshServerDown",
        'up{service=~"scheduler|learner|relay"} == 0',
        "1m",
        "critical",
        "{{ $labels.service }} of {{ $labels.fleet }} cannot be scraped",
    ),
    Alert(
        "ParlmeshNoActors",
        'sum by (fleet) (parlmesh_scheduler_actors{state="ready"}) == 0',
        "2m",
        "critical",
        "no actor of {{ $labels.fleet }} takes tasks",
    ),
    Alert(
        "ParlmeshTasksWait",
        "max by (fleet) (parlmesh_scheduler_oldest_ready_age_seconds) > 600",
        "5m",
        "warning",
        "a task of {{ $labels.fleet }} has waited for {{ $value | humanizeDuration }}",
    ),
    Alert(
        "ParlmeshTasksFail",
        "fleet:parlmesh_outcome_failures:ratio_rate5m > 0.1",
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the tasks of {{ $labels.fleet }} fail",
    ),
    Alert(
        "ParlmeshQueueFull",
        'sum by (fleet) (increase(parlmesh_scheduler_refused_requests_total{reason="queue_full"}[5m])) > 0',
        "0m",
        "warning",
        "the scheduler of {{ $labels.fleet }} refuses tasks because its queue is full",
    ),
    Alert(
        "ParlmeshLeasesLost",
        "sum by (fleet) (increase(parlmesh_scheduler_lost_leases_total[15m])) > 3",
        "0m",
        "warning",
        "actors of {{ $labels.fleet }} went away with {{ $value | humanize }} leases",
    ),
    Alert(
        "ParlmeshNodesQuarantined",
        "max by (fleet) (parlmesh_scheduler_quarantined_nodes) > 0",
        "0m",
        "warning",
        "{{ $value }} nodes of {{ $labels.fleet }} get no tasks because of bad answers",
    ),
    Alert(
        "ParlmeshJournalFailing",
        "sum by (fleet) (increase(parlmesh_scheduler_commit_failures_total[5m])) > 0",
        "0m",
        "critical",
        "the scheduler of {{ $labels.fleet }} cannot write its journal, and accepts nothing",
    ),
    Alert(
        "ParlmeshTrainingStalled",
        'sum by (fleet) (parlmesh_learner_runs{state="running"}) > 0'
        " and sum by (fleet) (rate(parlmesh_learner_trained_steps_total[5m])) == 0",
        "5m",
        "warning",
        "a run of {{ $labels.fleet }} is running and trains nothing",
    ),
    Alert(
        "ParlmeshRelayLeft",
        "sum by (fleet) (parlmesh_actor_relay_left) > 0",
        "5m",
        "warning",
        "{{ $value }} actors of {{ $labels.fleet }} get no policies from their relay and burden the learner",
    ),
    Alert(
        "ParlmeshCallsRefused",
        "fleet_service:parlmesh_rpc_refused:rate5m > 1",
        "5m",
        "warning",
        "the {{ $labels.service }} of {{ $labels.fleet }} refuses {{ $value | humanize }} calls a second",
    ),
    Alert(
        "ParlmeshMixedVersions",
        "count by (fleet) (count by (fleet, version) (parlmesh_build_info)) > 1",
        "1h",
        "info",
        "{{ $labels.fleet }} runs {{ $value }} versions at once",
    ),
)


def recording_rules() -> dict[str, Any]:
    """The recording rules as a Prometheus rule file."""
    rules = [{"record": name, "expr": expression} for name, expression in RECORDED.items()]
    return {"groups": [{"name": "parlmesh-recording", "rules": rules}]}


def alerting_rules(runbooks_url: str) -> dict[str, Any]:
    """The alerting rules as a Prometheus rule file, each with a link to its runbook."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "runbook_url": f"{runbooks_url}#{alert.name.lower()}"},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "parlmesh-alerts", "rules": rules}]}
