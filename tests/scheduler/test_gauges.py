"""The metrics page says what the core counts."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from scheduler.core.statistics import MOST_KINDS
from scheduler.core.task import Task
from scheduler.gauges import Exporter
from tests.scheduler.conftest import Harness


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"parlmesh_scheduler_{name}", labels) or 0.0


def test_gauges_show_the_present_and_counters_grow_by_what_happened(harness: Harness) -> None:
    exporter = Exporter(harness.core)
    names: list[tuple[str, dict[str, Any]]] = [
        ("submitted_tasks_total", {}),
        ("outcomes_total", {"state": "succeeded"}),
        ("outcomes_total", {"state": "failed"}),
        ("retries_total", {}),
        ("stale_results_total", {}),
    ]
    before = [value(name, **labels) for name, labels in names]
    actor = harness.connect("a")
    harness.submit(*[Task(str(number), "noop", priority=2 + number % 2) for number in range(5)])
    (first,) = harness.take(actor)
    harness.finish(actor, first)
    harness.finish(actor, first, credit=False)
    harness.fail(actor, harness.take(actor)[0])
    harness.now += 7.0
    exporter.export(harness.now)
    assert [value(name, **labels) - old for (name, labels), old in zip(names, before, strict=True)] == [5, 1, 0, 1, 1]
    assert (value("tasks", state="queued"), value("tasks", state="running"), value("tasks", state="waiting")) == (
        2,
        1,
        1,
    )
    assert value("ready_tasks", priority="low") + value("ready_tasks", priority="normal") == 2
    assert value("oldest_ready_age_seconds") == 7.0
    assert (value("actors", state="ready"), value("actors", state="lost"), value("leases")) == (1, 0, 1)
    exporter.export(harness.now + 0.5)
    exporter.export(harness.now + 5.0)
    assert value("submitted_tasks_total") - before[0] == 5


def test_the_dispatch_latency_counts_every_lease(harness: Harness) -> None:
    exporter = Exporter(harness.core)
    actor = harness.connect("a", credits=0)
    harness.submit(Task("1", "noop"), Task("2", "noop"))
    harness.now += 0.3
    harness.report(actor, credits=1)
    harness.finish(actor)
    exporter.export(harness.now)
    name = "parlmesh_scheduler_dispatch_latency_seconds"
    assert REGISTRY.get_sample_value(f"{name}_bucket", {"le": "0.25"}) == 0
    assert REGISTRY.get_sample_value(f"{name}_bucket", {"le": "0.5"}) == 2
    assert REGISTRY.get_sample_value(f"{name}_bucket", {"le": "+Inf"}) == 2


def test_the_outcome_latency_is_told_by_kind_and_priority_and_kinds_are_bounded(harness: Harness) -> None:
    exporter = Exporter(harness.core)
    actor = harness.connect("a", kinds=("echo", *(f"kind-{number}" for number in range(MOST_KINDS))), slots=100)
    harness.submit(Task("first", "echo", priority=4))
    harness.now += 0.3
    harness.finish(actor)
    harness.submit(*[Task(str(number), f"kind-{number}") for number in range(MOST_KINDS)])
    for _ in range(MOST_KINDS):
        harness.finish(actor)
    exporter.export(harness.now)
    name = "parlmesh_scheduler_outcome_latency_seconds"
    urgent = {"kind": "echo", "priority": "high"}
    assert REGISTRY.get_sample_value(f"{name}_bucket", {**urgent, "le": "0.25"}) == 0
    assert REGISTRY.get_sample_value(f"{name}_bucket", {**urgent, "le": "0.5"}) == 1
    assert REGISTRY.get_sample_value(f"{name}_sum", urgent) == pytest.approx(0.3)
    assert REGISTRY.get_sample_value(f"{name}_count", {"kind": "other", "priority": "normal"}) == 1
