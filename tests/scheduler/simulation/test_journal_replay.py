"""A replay of the journal shows what a restart would change."""

from collections.abc import Callable

import pytest

from scheduler.core.core import Core
from scheduler.core.task import Task
from scheduler.simulation.journal_replay import differences
from tests.scheduler.conftest import Harness


def lose_a_task(core: Core) -> None:
    del core.life.tasks["queued"]


def change_a_result(core: Core) -> None:
    core.task("done").result = b"other"


def forget_an_attempt(core: Core) -> None:
    core.task("running").attempts = 0


def change_an_actor(core: Core) -> None:
    core.life.fleet.actors["a"].slots = 3


def know_a_kind(core: Core) -> None:
    core.life.roster.kinds.announce(["other"], 0.0)


@pytest.mark.parametrize(
    ("tamper", "word"),
    [
        (lose_a_task, "queued"),
        (change_a_result, "done"),
        (forget_an_attempt, "running"),
        (change_an_actor, 'actor "a"'),
        (know_a_kind, "kinds"),
    ],
)
def test_every_difference_is_named(harness: Harness, tamper: Callable[[Core], None], word: str) -> None:
    actor = harness.connect("a", slots=1)
    harness.submit(Task("done", "noop"))
    harness.finish(actor, result=b"result")
    harness.submit(Task("running", "noop"), Task("queued", "noop"))
    assert differences(harness.core, harness.journal, harness.now) == []
    tamper(harness.core)
    found = differences(harness.core, harness.journal, harness.now)
    assert any(word in sentence for sentence in found)
    Harness.made.clear()


def test_a_batch_that_is_missing_is_noticed(harness: Harness) -> None:
    harness.submit(Task("t", "noop"))
    harness.connect("a")
    assert differences(harness.core, harness.journal[1:], harness.now)
