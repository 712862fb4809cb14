"""Prometheus finds on every process what docs/metrics.md promises."""

import re
import urllib.request
from pathlib import Path

import pytest

from parlmesh.testing import free_port

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(parlmesh_\w+)`(?: \{[\w, ]+\})? \|", re.MULTILINE)
FAMILY = re.compile(r"^# TYPE (parlmesh_\w+) (\w+)$", re.MULTILINE)


def families(port):
    """Names as they are queried: counters with _total, without the _created series beside them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = FAMILY.findall(answer.read().decode())
    return {name for name, _ in found if not name.endswith("_created")}


def test_every_metric_is_documented_and_every_documented_metric_exists(fleet):
    ports = [free_port() for _ in range(4)]
    fleet.scheduler(**{"metrics.port": ports[0]})
    fleet.learner(**{"metrics.port": ports[1], "training.num_envs": 4, "training.trajectory_steps": 8})
    fleet.relay(**{"metrics.port": ports[3]})
    fleet.actor(**{"metrics.port": ports[2], "relay": fleet.relay_address})
    exported = set().union(*(families(port) for port in ports))
    documented = set(ROW.findall(PAGE.read_text()))
    assert exported - documented == set(), "missing in docs/metrics.md"
    assert documented - exported == set(), "promised in docs/metrics.md and not exported"
