"""One sentence says why a task is where it is."""

import pytest

from scheduler.core.actors.placement import ActorCommand
from scheduler.core.task import Placement, Task
from scheduler.core.task_explanation import explain
from tests.scheduler.conftest import Harness


def why(harness: Harness, task_id: str) -> str:
    return explain(harness.core, harness.core.task(task_id), harness.now)


@pytest.fixture
def harness() -> Harness:
    return Harness(queue={"refuse_unknown_kinds": False})


def test_nobody_has_the_kind(harness: Harness) -> None:
    harness.connect("a")
    harness.submit(Task("t", "shogi"))
    assert why(harness, "t") == "no READY actor has the kind shogi"


def test_those_that_have_the_kind_are_paused(harness: Harness) -> None:
    harness.connect("a", kinds=("shogi",))
    harness.connect("b", kinds=("shogi",))
    harness.disconnect(harness.connect("c", kinds=("shogi",)))
    harness.command(ActorCommand.PAUSE, "a", "b")
    harness.submit(Task("t", "shogi"))
    assert why(harness, "t") == "no READY actor has the kind shogi; 2 that could are paused; 1 that could is lost"


def test_the_pinned_node_is_missing(harness: Harness) -> None:
    harness.connect("a", node_id="node-1")
    placement = Placement("node-2", frozenset({("gpu", "yes")}))
    harness.submit(Task("t", "noop", placement=placement))
    assert why(harness, "t") == (
        'no READY actor has the kind noop and the labels gpu=yes on node "node-2"; '
        "1 READY with the kind is elsewhere or labelled otherwise"
    )


def test_everyone_is_busy(harness: Harness) -> None:
    harness.connect("a")
    harness.connect("b")
    harness.submit(*[Task(str(number), "noop") for number in range(4)])
    harness.now += 2.5
    assert why(harness, "3") == (
        "2 of 2 READY actors that can run it are full; it has waited 2.5 s with priority NORMAL, "
        "and 1 other tasks are queued"
    )


def test_its_lease_is_not_written_down_yet(harness: Harness) -> None:
    harness.connect("a")
    harness.hang_disk(failing=True)
    harness.submit(Task("t", "noop"))
    assert why(harness, "t") == 'attempt 1 is sent to actor "a" once its lease is written down'


def test_it_waits_for_others(harness: Harness) -> None:
    parents = [f"p{number}" for number in range(5)]
    harness.submit(*[Task(name, "noop") for name in parents], Task("t", "noop", dependencies=tuple(parents)))
    assert why(harness, "t") == 'waits for 5 of 5 dependencies: "p0", "p1", "p2" and 2 more'


def test_it_waits_for_its_next_attempt(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.fail(actor, harness.take(actor)[0])
    assert why(harness, "t").startswith("attempt 1 ended with HANDLER_ERROR: it broke; the next one starts in 0.1 s")


def test_it_runs(harness: Harness) -> None:
    harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.now += 4
    assert why(harness, "t") == 'attempt 1 has been with actor "a" for 4.0 s; its lease ends in 6.0 s unless renewed'


def test_it_ended(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("good", "noop"))
    harness.finish(actor, ran=1.5)
    harness.submit(Task("bad", "noop"))
    harness.fail(actor, harness.take(actor)[0], retryable=False)
    assert why(harness, "good") == 'attempt 1 succeeded on actor "a" after 1.500 s'
    assert why(harness, "bad") == "FAILED after 1 attempt: HANDLER_ERROR: it broke"
