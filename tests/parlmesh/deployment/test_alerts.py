"""The rules, judged by promtool: each alert fires on its symptom and is silent on a healthy fleet."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from parlmesh.deployment.alerts import ALERTS, RECORDED
from parlmesh.deployment.grafana import expressions
from parlmesh.deployment.rendered_files import write
from parlmesh.deployment.settings import DeploySettings
from tests.parlmesh.deployment.conftest import Run

ROOT = Path(__file__).parents[3]
F = 'fleet="parlmesh"'
# A healthy fleet: one value a minute for two hours.
HEALTHY = {
    f'up{{{F},service="scheduler"}}': "1+0x120",
    f'up{{{F},service="learner"}}': "1+0x120",
    f'parlmesh_scheduler_actors{{{F},state="ready"}}': "2+0x120",
    f"parlmesh_scheduler_oldest_ready_age_seconds{{{F}}}": "5+0x120",
    f'parlmesh_scheduler_outcomes_total{{{F},state="succeeded"}}': "0+600x120",
    f'parlmesh_scheduler_outcomes_total{{{F},state="failed"}}': "0+1x120",
    f'parlmesh_scheduler_refused_requests_total{{{F},reason="queue_full"}}': "0+0x120",
    f"parlmesh_scheduler_lost_leases_total{{{F}}}": "1+0x120",
    f"parlmesh_scheduler_quarantined_nodes{{{F}}}": "0+0x120",
    f"parlmesh_scheduler_commit_failures_total{{{F}}}": "0+0x120",
    f"parlmesh_actor_relay_left{{{F}}}": "0+0x120",
    f'parlmesh_learner_runs{{{F},state="running"}}': "1+0x120",
    f"parlmesh_learner_trained_steps_total{{{F}}}": "0+9000x120",
    f'parlmesh_rpc_refused_total{{{F},service="scheduler",reason="NO_CREDENTIAL"}}': "0+1x120",
    f'parlmesh_build_info{{{F},service="scheduler",version="0.1.0"}}': "1+0x120",
    f'parlmesh_build_info{{{F},service="actor",version="0.1.0"}}': "1+0x120",
}
# The changes that make each symptom.
SYMPTOMS: dict[str, dict[str, str]] = {
    "ParlmeshServerDown": {f'up{{{F},service="learner"}}': "0+0x120"},
    "ParlmeshNoActors": {f'parlmesh_scheduler_actors{{{F},state="ready"}}': "0+0x120"},
    "ParlmeshTasksWait": {f"parlmesh_scheduler_oldest_ready_age_seconds{{{F}}}": "0+60x120"},
    "ParlmeshTasksFail": {f'parlmesh_scheduler_outcomes_total{{{F},state="failed"}}': "0+200x120"},
    "ParlmeshQueueFull": {f'parlmesh_scheduler_refused_requests_total{{{F},reason="queue_full"}}': "0+1x120"},
    "ParlmeshLeasesLost": {f"parlmesh_scheduler_lost_leases_total{{{F}}}": "0+1x120"},
    "ParlmeshNodesQuarantined": {f"parlmesh_scheduler_quarantined_nodes{{{F}}}": "1+0x120"},
    "ParlmeshJournalFailing": {f"parlmesh_scheduler_commit_failures_total{{{F}}}": "0+1x120"},
    "ParlmeshTrainingStalled": {f"parlmesh_learner_trained_steps_total{{{F}}}": "9000+0x120"},
    "ParlmeshRelayLeft": {f"parlmesh_actor_relay_left{{{F}}}": "1+0x120"},
    "ParlmeshCallsRefused": {
        f'parlmesh_rpc_refused_total{{{F},service="scheduler",reason="NO_CREDENTIAL"}}': "0+600x120"
    },
    "ParlmeshMixedVersions": {f'parlmesh_build_info{{{F},service="actor",version="0.0.9"}}': "1+0x120"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write("prometheus", DeploySettings(), tmp_path, certificates=False, force=False)
    return tmp_path / "prometheus"


def case(series: dict[str, str], firing: set[str]) -> dict[str, Any]:
    """Checks the series ALERTS, which only says that an alert fires: its text is not repeated here."""
    names = sorted(firing)
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names]
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "100m", "exp_samples": samples}],
    }


def test_every_alert_fires_on_its_symptom_and_none_on_a_healthy_fleet(folder: Path, tool: Callable[[str], Run]) -> None:
    promtool = tool("promtool")
    assert set(SYMPTOMS) == {alert.name for alert in ALERTS}
    cases = [case(HEALTHY, set()), *(case(HEALTHY | change, {name}) for name, change in SYMPTOMS.items())]
    file = folder / "rules_test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules/recording.yml", "rules/alerts.yml"], "tests": cases}))
    answer = promtool("test", "rules", file)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_promtool_accepts_configurations_and_rules(folder: Path, tool: Callable[[str], Run]) -> None:
    promtool = tool("promtool")
    for name in ("prometheus.yml", "file-discovery.yml"):
        answer = promtool("check", "config", folder / name)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_alert_has_a_runbook() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert headings == [alert.name for alert in ALERTS]


def test_rules_and_dashboard_use_only_metrics_that_are_documented() -> None:
    documented = set(re.findall(r"^\| `(parlmesh_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    used: set[str] = set()
    for expression in [*RECORDED.values(), *(alert.expression for alert in ALERTS), *expressions()]:
        # A recorded name has colons around its metric, and is computed from other metrics.
        used |= set(re.findall(r"(?<![:\w])parlmesh_\w+(?![:\w])", expression))
    assert {re.sub(r"_bucket$", "", name) for name in used} <= documented
