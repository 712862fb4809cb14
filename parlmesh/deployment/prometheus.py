"""Configures how Prometheus finds the processes of a fleet, in several ways; a fleet needs one."""

import json
from typing import Any

from .alerts import alerting_rules, recording_rules
from .service_configs import ACTOR_METRICS, LEARNER_METRICS, RELAY_METRICS, SCHEDULER_METRICS
from .settings import DeploySettings
from .yaml_files import dump

INTERVAL = "15s"


def files(settings: DeploySettings) -> dict[str, str]:
    """Scrape configurations, rules, and the adapter rule for scaling actors."""
    fleet = {"target_label": "fleet", "replacement": settings.name}
    return {
        "prometheus.yml": dump(_prometheus([_servers(settings), _discovered(settings, fleet)])),
        "file-discovery.yml": dump(
            _prometheus([{"job_name": "parlmesh", "file_sd_configs": [{"files": ["targets/*.json"]}]}])
        ),
        "targets/fleet.json": json.dumps(_listed(settings), indent=2) + "\n",
        "kubernetes.yml": dump(_prometheus([_pods(settings, fleet)])),
        "rules/recording.yml": dump(recording_rules()),
        "rules/alerts.yml": dump(alerting_rules(settings.runbooks_url)),
        "adapter-rules.yml": dump(_adapter()),
    }


def _prometheus(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules/*.yml"],
        "scrape_configs": jobs,
    }


def _servers(settings: DeploySettings) -> dict[str, Any]:
    return {"job_name": "parlmesh-servers", "static_configs": _listed(settings)[:3]}


def _discovered(settings: DeploySettings, fleet: dict[str, str]) -> dict[str, Any]:
    """Actors come and go, so the scheduler lists them."""
    url = f"http://{settings.scheduler_host}:{SCHEDULER_METRICS}/targets"
    node = {"source_labels": ["__meta_parlmesh_node_id"], "target_label": "node"}
    return {
        "job_name": "parlmesh-actors",
        "http_sd_configs": [{"url": url, "refresh_interval": INTERVAL}],
        "relabel_configs": [fleet, node],
    }


def _listed(settings: DeploySettings) -> list[dict[str, Any]]:
    at = {
        "scheduler": [f"{settings.scheduler_host}:{SCHEDULER_METRICS}"],
        "learner": [f"{settings.learner_host}:{LEARNER_METRICS}"],
        "relay": [f"{settings.relay_host}:{RELAY_METRICS}"],
        "actor": [f"{settings.name}-actors-{index}.example:{ACTOR_METRICS}" for index in range(settings.actors)],
    }
    return [
        {"targets": targets, "labels": {"fleet": settings.name, "service": service}} for service, targets in at.items()
    ]


def _pods(settings: DeploySettings, fleet: dict[str, str]) -> dict[str, Any]:
    """Pods by their labels and port name, which deploy/kubernetes sets."""
    label = "__meta_kubernetes_pod_label_app_kubernetes_io"
    return {
        "job_name": "parlmesh",
        "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [settings.namespace]}}],
        "relabel_configs": [
            {"source_labels": [f"{label}_name"], "regex": "parlmesh", "action": "keep"},
            {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": "metrics", "action": "keep"},
            {"source_labels": [f"{label}_component"], "regex": "(.*?)s?", "target_label": "service"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "node"},
            fleet,
        ],
    }


def _adapter() -> dict[str, Any]:
    """For prometheus-adapter: the backlog as an external metric in Kubernetes."""
    series = "fleet:parlmesh_backlog_tasks:sum"
    return {
        "externalRules": [
            {
                "seriesQuery": series,
                "metricsQuery": f"sum by (fleet) ({series}{{<<.LabelMatchers>>}})",
                "name": {"as": "parlmesh_backlog_tasks"},
                "resources": {"namespaced": False},
            }
        ]
    }
