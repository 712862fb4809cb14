"""Which actor gets which task, how many in advance, and which are moved afterwards."""

import gc
from collections.abc import Callable

import pytest

from scheduler.core.actors.placement import ActorCommand
from scheduler.core.queue.ready_queue import Lane
from scheduler.core.queue.task_class import TaskClass
from scheduler.core.task import Placement, Priority, Task
from tests.scheduler.conftest import Harness, ids, noop


def test_an_unknown_kind_is_accepted_while_no_actor_was_ever_seen(harness: Harness) -> None:
    harness.submit(Task("early", "shogi"))
    actor = harness.connect("a", kinds=("shogi",))
    assert ids(harness.take(actor)) == ["early"]


def test_a_low_task_overtakes_a_stream_of_critical_ones_after_the_aging_time(make: Callable[..., Harness]) -> None:
    harness = make(queue={"aging_seconds": 10.0})
    actor = harness.connect("a", credits=0)
    harness.submit(noop("low", priority=Priority.LOW))
    waited = 0
    while harness.states("low") == ["QUEUED"]:
        harness.submit(noop(f"critical {waited}", priority=Priority.CRITICAL))
        harness.report(actor, credits=1)
        harness.finish(actor, credit=False)
        harness.now += 1.0
        waited += 1
        assert waited < 100
    assert waited == pytest.approx(30, abs=2)


def test_capabilities_decide_who_gets_what(harness: Harness) -> None:
    shogi = harness.connect("shogi", kinds=("shogi",), slots=9)
    noops = harness.connect("noop", kinds=("noop",), slots=9)
    harness.submit(Task("s", "shogi"), Task("n", "noop"))
    assert ids(harness.take(shogi)) == ["s"]
    assert ids(harness.take(noops)) == ["n"]


def test_a_pinned_task_runs_on_its_node_or_waits(harness: Harness) -> None:
    elsewhere = harness.connect("a1", node_id="node-1", slots=9)
    harness.submit(noop("t", placement=Placement("node-2")), noop("free"))
    assert ids(harness.take(elsewhere)) == ["free"]
    there = harness.connect("a2", node_id="node-2")
    assert ids(harness.take(there)) == ["t"]
    harness.finish(there, harness.core.task("t"))
    harness.submit(noop("again", placement=Placement("node-2")))
    assert ids(harness.take(there)) == ["again"]


def test_labels_must_all_match(harness: Harness) -> None:
    wanted = frozenset({("gpu", "yes"), ("zone", "1")})
    half = harness.connect("half", labels=(("gpu", "yes"),))
    harness.submit(noop("t", placement=Placement("", wanted)))
    assert harness.take(half) == []
    full = harness.connect("full", labels=(("gpu", "yes"), ("zone", "1"), ("more", "x")))
    assert ids(harness.take(full)) == ["t"]


def test_an_unplaceable_task_blocks_nobody(harness: Harness) -> None:
    harness.submit(noop("stuck", placement=Placement("nowhere"), priority=Priority.CRITICAL))
    actor = harness.connect("a", slots=3)
    harness.submit(noop("1"), noop("2"))
    assert ids(harness.take(actor)) == ["1", "2"]


def test_scarce_tasks_go_to_free_slots_of_different_actors(harness: Harness) -> None:
    actors = [harness.connect(f"a{number}", slots=4) for number in range(4)]
    harness.submit(*[noop(str(number)) for number in range(16)])
    assert [len(harness.take(actor)) for actor in actors] == [4, 4, 4, 4]


def test_the_next_of_even_long_tasks_is_given_just_before_the_end(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(9)])
    harness.finish(actor, ran=0.1)
    lead = harness.config.dispatch.prefetch_seconds
    assert harness.core.next_ending == pytest.approx(harness.now + 0.1 - lead)
    harness.now += 0.1 - 1.25 * lead - 0.001
    harness.foresee()
    assert ids(harness.take(actor)) == ["1"]
    harness.now = harness.core.next_ending
    harness.foresee()
    (second,) = harness.take(actor)
    assert second.task_id == "2"
    # One in advance, however often it is checked; the one in advance ends a whole run later.
    harness.foresee()
    assert harness.take(actor) == []
    assert harness.core.next_ending == pytest.approx(harness.now + 0.1)


def test_actors_whose_tasks_end_soon_after_another_are_looked_at_together(harness: Harness) -> None:
    first, second = harness.connect("a", credits=100), harness.connect("b", credits=100)
    harness.submit(*[noop(str(number)) for number in range(9)])
    harness.finish(first, ran=0.1)
    harness.now += 0.004
    harness.finish(second, ran=0.1)
    harness.take(first), harness.take(second)
    harness.now = harness.core.next_ending
    harness.foresee()
    assert [len(harness.take(actor)) for actor in (first, second)] == [1, 1]
    assert harness.core.next_ending > harness.now + 0.05


def test_the_task_held_in_advance_is_the_only_one_after_the_end(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(9)])
    harness.finish(actor, ran=0.1)
    (first,) = harness.take(actor)
    harness.now = harness.core.next_ending
    harness.foresee()
    harness.finish(actor, first, ran=0.1)
    assert len(harness.actor("a").leases) == 1


def test_the_end_of_uneven_tasks_is_not_foreseen(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(9)])
    for ran in (0.1, 3.0, 0.1, 2.0):
        harness.finish(actor, ran=ran)
    harness.now += 10.0
    harness.foresee()
    assert len(harness.actor("a").leases) == 1


def test_long_tasks_are_not_held_in_advance_and_short_ones_are(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(200)])
    assert len(harness.held["a"]) == 1
    harness.finish(actor, ran=0.1)
    assert len(harness.held["a"]) == 1
    for _ in range(20):
        harness.finish(actor, ran=0.0001)
    assert harness.actor("a").depth > 1
    deepest = 0
    for _ in range(20):
        harness.submit(*[noop("") for _ in range(50)])
        deepest = max(deepest, len(harness.actor("a").leases))
        harness.finish(actor, ran=0.0001)
    assert 10 < deepest <= 100


def test_rebalancing_moves_what_has_not_started_to_free_slots(harness: Harness) -> None:
    slow = harness.connect("slow", credits=4)
    harness.actor("slow").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    assert len(harness.take(slow)) == 4
    quick = harness.connect("quick", slots=2)
    harness.hold(slow)
    assert harness.rebalance() == 2
    moved = harness.take(quick)
    assert len(moved) == 2
    assert sorted(lease.task_id for lease in harness.revoked["slow"]) == sorted(ids(moved))
    assert all((task.attempts, task.losses) == (1, 0) for task in moved)
    assert len(harness.actor("slow").leases) == 2


@pytest.mark.parametrize("command", [None, ActorCommand.PAUSE])
def test_rebalancing_moves_nothing_that_may_have_ended_at_once(harness: Harness, command: ActorCommand | None) -> None:
    """Inline handlers take no slot and have ended before the next heartbeat, which does not name them."""
    away = harness.connect("away", credits=4)
    harness.actor("away").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    first, *rest = harness.take(away)
    harness.connect("idle", slots=4)
    if command is not None:
        harness.command(command, "away")
    harness.pass_time(2)
    harness.stall(5)
    assert harness.rebalance() == 0
    harness.heartbeat(away, first.lease)
    assert harness.rebalance() == 0
    harness.finish(away, *rest)
    assert [task.attempts for task in harness.outcomes] == [1, 1, 1]
    assert harness.states(first.task_id) == ["RUNNING"]


def test_rebalancing_moves_nothing_that_runs_in_the_slot_of_one_that_only_waits(harness: Harness) -> None:
    actor = harness.connect("actor", credits=3)
    harness.actor("actor").depth = 3
    harness.submit(*[noop(str(number)) for number in range(3)])
    tail, running, waiting = harness.take(actor)
    idle = harness.connect("idle", slots=4)
    leases = [task.lease for task in (tail, running, waiting)]
    harness.report(actor, heartbeat=leases, slotless=[tail.lease_id])
    assert harness.rebalance() == 1
    assert ids(harness.take(idle)) == [waiting.task_id]
    assert harness.states(running.task_id) == ["RUNNING"]


@pytest.mark.parametrize("command", [None, ActorCommand.PAUSE])
def test_rebalancing_moves_nothing_that_its_actor_may_have_preferred(
    harness: Harness, command: ActorCommand | None
) -> None:
    """An actor starts the most urgent waiting task, not the oldest."""
    busy = harness.connect("busy", credits=5)
    harness.actor("busy").depth = 5
    for task_id, priority in (("first", 3), ("older", 2), ("urgent", 4), ("like it", 2), ("last", 1)):
        harness.submit(noop(task_id, priority=priority))
    first = harness.take(busy)[0]
    harness.finish(busy, first, credit=False)
    idle = harness.connect("idle", slots=4)
    harness.hold(busy)
    if command is not None:
        harness.command(command, "busy")
    assert harness.rebalance() == 2
    assert sorted(ids(harness.take(idle))) == ["last", "like it"]
    assert harness.states("older", "urgent") == ["RUNNING", "RUNNING"]


def test_rebalancing_knows_that_a_lease_which_waited_for_its_commit_came_later(harness: Harness) -> None:
    busy = harness.connect("busy", credits=0)
    harness.actor("busy").depth = 2
    harness.submit(noop("late"))
    harness.hang_disk(failing=True)
    harness.report(busy, credits=1)
    harness.core.life.first_leases_wait = False
    harness.report(busy, credits=1)
    harness.submit(noop("running"))
    assert ids(harness.take(busy)) == ["late", "running"]
    harness.heal_disk()
    idle = harness.connect("idle")
    harness.hold(busy)
    assert harness.rebalance() == 1
    assert ids(harness.take(idle)) == ["late"]


def test_what_rebalancing_takes_is_not_given_back_to_the_same_actor(harness: Harness) -> None:
    slow = harness.connect("slow", credits=50)
    harness.actor("slow").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    assert len(harness.take(slow)) == 4
    quick = harness.connect("quick", slots=2)
    harness.hold(slow)
    assert harness.rebalance() == 2
    assert len(harness.take(quick)) == 2
    assert harness.take(slow) == []


def test_time_alone_moves_held_tasks_off_a_slow_actor(harness: Harness) -> None:
    slow = harness.connect("slow", credits=4)
    harness.actor("slow").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    quick = harness.connect("quick", slots=3)
    harness.pass_time(2, alive=[slow, quick])
    assert len(harness.take(quick)) == 3


def test_classes_that_are_dropped_leave_no_circles_behind(make: Callable[..., Harness]) -> None:
    """Old objects are not searched for garbage, so cycles would stay for ever."""
    harness = make(retention={"max_tasks": 0})
    actor = harness.connect("a", kinds=tuple(f"kind {number}" for number in range(20)))
    gc.collect()
    gc.disable()
    try:
        for number in range(20):
            harness.submit(Task(f"t{number}", f"kind {number}", placement=Placement("", frozenset())))
            harness.finish(actor)
        harness.pass_time(20.0, alive=[actor])
        assert not harness.core.life.queue.classes
        harness.outcomes.clear()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [thing for thing in gc.garbage if isinstance(thing, TaskClass | Lane)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
