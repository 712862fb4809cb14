"""How far back outcomes are still known."""

from typing import Any

import pytest

from scheduler.config import RetentionConfig
from scheduler.core.core import Core
from scheduler.core.retention import Retention
from scheduler.core.task import Task
from tests.scheduler.conftest import Harness, noop


def retention(ends: list[float], now: float, **config: Any) -> Retention:
    found = Retention(RetentionConfig(**config))
    for end in ends:
        task = Task(str(end), "noop", b"12345678")
        task.end_time = end
        found.keep([task])
    found.excess(now)
    return found


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({}, 50.0),
        ({"max_tasks": 3}, 8.0),  # those of 2, 4 and 6 are kept
        ({"max_tasks": 4}, 10.0),  # it is full: an earlier one may have been pushed out
        ({"max_bytes": 8}, 4.0),
        ({"max_tasks": 0}, 0.0),
    ],
)
def test_everything_that_ended_within_that_time_is_known(config: dict[str, int], seconds: float) -> None:
    kept = retention([0.0, 2.0, 4.0, 6.0], 10.0, max_seconds=50.0, **config)
    assert kept.remembers(10.0) == seconds


# The clock of the restarted scheduler goes on from the newest record, a second ago.
@pytest.mark.parametrize(("max_bytes", "seconds", "restarted_seconds"), [(3000, 3.0, 2.0), (100_000, 3600.0, 3600.0)])
def test_a_restart_promises_no_more_than_is_kept(max_bytes: int, seconds: float, restarted_seconds: float) -> None:
    harness = Harness(retention={"max_bytes": max_bytes}, queue={"max_payload_bytes": 600})
    actor = harness.connect("a")
    for number in range(5):
        harness.submit(noop(str(number), body=bytes(500)))
        harness.finish(actor, result=bytes(500))
        harness.pass_time(1.0, alive=[actor])
    assert harness.core.life.retention.remembers(harness.now) == pytest.approx(seconds)
    again = Core(harness.config, now=harness.now, wall_time=harness.now)
    again.recover(harness.journal, harness.now)
    assert again.life.retention.remembers(harness.now) == pytest.approx(restarted_seconds)


def test_age_alone_forgets_what_is_older_than_promised() -> None:
    kept = retention([0.0, 2.0], 100.0, max_seconds=50.0)
    assert (len(kept), kept.remembers(100.0)) == (0, 50.0)


def test_a_holder_of_a_forgotten_task_keeps_its_outcome_but_not_its_payload() -> None:
    harness = Harness(retention={"max_tasks": 0})
    actor = harness.connect("a")
    harness.submit(noop("t", body=bytes(1000)))
    held = harness.core.life.tasks["t"]
    harness.finish(actor)
    assert len(held.body) == 1000
    harness.pass_time(1)
    assert (list(harness.core.life.tasks), held.body, held.final) == ([], b"", True)


def test_nothing_is_forgotten_before_anybody_could_be_told_of_it() -> None:
    harness = Harness(retention={"max_tasks": 0})
    actor = harness.connect("a")
    harness.submit(noop("before"))
    harness.finish(actor)
    harness.hang_disk(failing=False)
    harness.submit(noop("during"))
    harness.finish(actor)
    harness.pass_time(1)
    assert list(harness.core.life.tasks) == ["during"]
    # Its client got no answer and resubmits it: it has already ended.
    harness.submit(noop("during"))
    assert harness.take(actor) == []
    harness.heal_disk()
    harness.pass_time(1)
    assert list(harness.core.life.tasks) == []
