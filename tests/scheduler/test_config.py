"""Settings that cannot work are refused with a sentence."""

import re
from pathlib import Path

import pytest

from parlmesh.config import load
from parlmesh.errors import ConfigError
from scheduler.config import SchedulerConfig


def configured(*overrides: str) -> SchedulerConfig:
    return load(SchedulerConfig, overrides=overrides, prefix="PARLMESH_SCHEDULER")


def test_the_ports_are_those_of_the_documents() -> None:
    root = Path(__file__).parents[2]
    listen, metrics = configured().listen.port, configured().metrics.port
    assert re.findall(r"grpcurl -plaintext localhost:(\d+)", (root / "README.md").read_text()) == [str(listen)]
    assert f"the scheduler on port {metrics}," in (root / "docs/metrics.md").read_text()


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("leases.duration_seconds=1.5", "twice heartbeat_seconds"),
        ("queue.max_tasks=0", "queue.max_tasks"),
        ("store.kind=redis", "store.kind"),
        ("store.synchronous=off", "store.synchronous"),
        ("queue.max_task=5", "max_tasks"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(override: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        configured(override)
