"""The Grafana dashboard as JSON, from a table of panels; the variable `fleet` selects among many fleets."""

import json
from typing import Any, NamedTuple

from .settings import DeploySettings

WIDTH, HEIGHT, ACROSS = 8, 7, 3
RATE = "$__rate_interval"
FLEET = 'fleet=~"$fleet"'


class Panel(NamedTuple):
    """One chart: its title, its unit, and its expressions with legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""


def _p99(metric: str, *by: str) -> str:
    return f"histogram_quantile(0.99, sum by ({', '.join((*by, 'le'))}) (rate({metric}_bucket{{{FLEET}}}[{RATE}])))"


ROWS: dict[str, tuple[Panel, ...]] = {
    "The fleet": (
        Panel(
            "Actors",
            "none",
            ((f"sum by (fleet, state) (parlmesh_scheduler_actors{{{FLEET}}})", "{{fleet}} {{state}}"),),
        ),
        Panel(
            "Slots and leases",
            "none",
            (
                (f"sum by (fleet) (parlmesh_scheduler_slots{{{FLEET}}})", "{{fleet}} slots"),
                (f"sum by (fleet) (parlmesh_scheduler_leases{{{FLEET}}})", "{{fleet}} leases"),
            ),
        ),
        Panel(
            "Versions",
            "none",
            (
                (
                    f"count by (fleet, service, version) (parlmesh_build_info{{{FLEET}}})",
                    "{{fleet}} {{service}} {{version}}",
                ),
            ),
        ),
    ),
    "Tasks": (
        Panel(
            "Waiting, by priority",
            "none",
            ((f"sum by (fleet, priority) (parlmesh_scheduler_ready_tasks{{{FLEET}}})", "{{fleet}} {{priority}}"),),
        ),
        Panel(
            "Outcomes a second",
            "ops",
            (
                (
                    f"sum by (fleet, state) (rate(parlmesh_scheduler_outcomes_total{{{FLEET}}}[{RATE}]))",
                    "{{fleet}} {{state}}",
                ),
            ),
        ),
        Panel(
            "Submit to outcome, 99th percentile",
            "s",
            (
                (
                    _p99("parlmesh_scheduler_outcome_latency_seconds", "fleet", "kind", "priority"),
                    "{{fleet}} {{kind}} {{priority}}",
                ),
            ),
            "By kind and priority; includes waiting for dependencies, for a slot and for other attempts.",
        ),
        Panel(
            "Ready to leased, 99th percentile",
            "s",
            ((_p99("parlmesh_scheduler_dispatch_latency_seconds", "fleet"), "{{fleet}}"),),
        ),
        Panel(
            "Time in handlers, 99th percentile",
            "s",
            ((_p99("parlmesh_actor_run_seconds", "fleet", "kind"), "{{fleet}} {{kind}}"),),
        ),
        Panel(
            "Lost leases and retries a second",
            "ops",
            (
                (f"sum by (fleet) (rate(parlmesh_scheduler_lost_leases_total{{{FLEET}}}[{RATE}]))", "{{fleet}} lost"),
                (f"sum by (fleet) (rate(parlmesh_scheduler_retries_total{{{FLEET}}}[{RATE}]))", "{{fleet}} retried"),
            ),
        ),
    ),
    "Training": (
        Panel(
            "Steps trained a second",
            "ops",
            ((f"sum by (fleet) (rate(parlmesh_learner_trained_steps_total{{{FLEET}}}[{RATE}]))", "{{fleet}}"),),
        ),
        Panel(
            "Mean return of the last evaluation",
            "none",
            ((f"max by (fleet) (parlmesh_learner_evaluation_return{{{FLEET}}})", "{{fleet}}"),),
        ),
        Panel(
            "Who waits",
            "percentunit",
            (
                (f"max by (fleet) (parlmesh_learner_idle_ratio{{{FLEET}}})", "{{fleet}} learner"),
                (f"max by (fleet) (parlmesh_learner_actors_idle_ratio{{{FLEET}}})", "{{fleet}} actors"),
            ),
            "Near 1 for the learner: more actors help. Near 1 for the actors: docs/metrics.md says what to look at.",
        ),
        Panel(
            "Policy lag, 99th percentile",
            "none",
            ((_p99("parlmesh_learner_policy_lag_versions", "fleet"), "{{fleet}} versions"),),
        ),
        Panel(
            "Trajectories a second",
            "ops",
            (
                (
                    f"sum by (fleet) (rate(parlmesh_learner_trajectories_received_total{{{FLEET}}}[{RATE}]))",
                    "{{fleet}} received",
                ),
                (
                    f"sum by (fleet) (rate(parlmesh_learner_trajectories_trained_total{{{FLEET}}}[{RATE}]))",
                    "{{fleet}} trained",
                ),
            ),
        ),
        Panel("Runs", "none", ((f"sum by (fleet, state) (parlmesh_learner_runs{{{FLEET}}})", "{{fleet}} {{state}}"),)),
    ),
    "Servers": (
        Panel(
            "Calls a second, by status",
            "ops",
            (
                (
                    f"sum by (fleet, service, code) (rate(parlmesh_rpc_requests_total{{{FLEET}}}[{RATE}]))",
                    "{{fleet}} {{service}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Group commits of the journal, 99th percentile",
            "s",
            ((_p99("parlmesh_scheduler_commit_seconds", "fleet"), "{{fleet}}"),),
        ),
        Panel(
            "Lateness of the scheduler's event loop",
            "s",
            ((f"max by (fleet) (parlmesh_scheduler_event_loop_lag_seconds{{{FLEET}}})", "{{fleet}}"),),
        ),
        Panel(
            "Memory",
            "bytes",
            ((f"sum by (fleet, service) (process_resident_memory_bytes{{{FLEET}}})", "{{fleet}} {{service}}"),),
        ),
        Panel(
            "Cores",
            "none",
            (
                (
                    f"sum by (fleet, service) (rate(process_cpu_seconds_total{{{FLEET}}}[{RATE}]))",
                    "{{fleet}} {{service}}",
                ),
            ),
        ),
    ),
}


def files(settings: DeploySettings) -> dict[str, str]:
    """The dashboard's file."""
    return {"parlmesh.json": json.dumps(dashboard(), indent=2) + "\n"}


def expressions() -> list[str]:
    """The expressions of all panels."""
    return [query for panels in ROWS.values() for panel in panels for query, _ in panel.queries]


def dashboard() -> dict[str, Any]:
    """The dashboard, for import into Grafana 10 and later."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "id": len(panels) + 1, "title": title, "gridPos": _place(top, 0, 24, 1)})
        top += 1
        for index, panel in enumerate(row):
            place = _place(top + index // ACROSS * HEIGHT, index % ACROSS * WIDTH, WIDTH, HEIGHT)
            panels.append(_chart(panel, len(panels) + 1, place))
        top += -(-len(row) // ACROSS) * HEIGHT
    return {
        "title": "parlmesh",
        "uid": "parlmesh",
        "tags": ["parlmesh"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _fleets()]},
        "panels": panels,
    }


def _chart(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]}},
        "targets": targets,
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _fleets() -> dict[str, Any]:
    return {
        "name": "fleet",
        "label": "Fleet",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(parlmesh_build_info, fleet)", "refId": "fleet"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _place(top: int, left: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}
