"""What operators tell actors: pause, resume, reset and drain."""

import pytest

from parlmesh.errors import InvalidInput, NotFound
from scheduler.core.actors.placement import ActorCommand, ActorState
from tests.scheduler.conftest import Harness, ids, noop


def test_pause_stops_one_actor_and_resume_starts_it_again(harness: Harness) -> None:
    actor = harness.connect("a")
    other = harness.connect("b")
    harness.command(ActorCommand.PAUSE, "a")
    assert harness.commands["a"] == [ActorCommand.PAUSE]
    harness.submit(noop("1"), noop("2"))
    assert harness.take(actor) == []
    assert len(harness.take(other)) == 1
    harness.command(ActorCommand.RESUME, "a")
    assert len(harness.take(actor)) == 1


def test_a_pause_outlives_a_reconnect(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.command(ActorCommand.PAUSE, "a")
    harness.disconnect(actor)
    back = harness.connect("a")
    harness.submit(noop("t"))
    assert harness.take(back) == []
    assert harness.actor("a").state is ActorState.PAUSED


def test_a_command_to_an_unknown_actor_changes_none(harness: Harness) -> None:
    harness.connect("a")
    with pytest.raises(NotFound, match="stranger"):
        harness.command(ActorCommand.PAUSE, "a", "stranger")
    assert harness.actor("a").state is ActorState.READY
    with pytest.raises(InvalidInput):
        harness.command(ActorCommand.PAUSE)


def test_reset_queues_the_actors_tasks_again_without_blame(harness: Harness) -> None:
    actor = harness.connect("a", credits=1)
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.command(ActorCommand.RESET, "a")
    assert harness.states("t") == ["QUEUED"]
    assert (task.attempts, task.losses) == (0, 0)
    harness.report(actor, results=[(*lease[:2], b"from before", None, 1.0)])
    assert harness.outcomes == []
    harness.report(actor, credits=1)
    assert ids(harness.take(actor)) == ["t"]


def test_a_drained_actor_finishes_what_it_has_and_nothing_is_lost(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.submit(*[noop(str(number)) for number in range(4)])
    first = harness.take(actor)
    harness.command(ActorCommand.DRAIN, "a")
    harness.finish(actor, *first)
    assert harness.take(actor) == []
    harness.disconnect(actor)
    other = harness.connect("b", slots=4)
    harness.finish(other)
    assert len(harness.outcomes) == 4
    assert all(task.attempts == 1 for task in harness.outcomes)


def test_held_tasks_leave_a_paused_actor_and_running_ones_stay(harness: Harness) -> None:
    actor = harness.connect("a", credits=4)
    harness.actor("a").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    harness.command(ActorCommand.PAUSE, "a")
    harness.hold(actor)
    assert harness.rebalance() == 3
    assert len(harness.actor("a").leases) == 1
    other = harness.connect("b", slots=3)
    assert len(harness.take(other)) == 3
    assert actor


def test_a_resumed_actor_that_drains_gets_nothing_more_and_its_work_goes_to_others_without_blame(
    harness: Harness,
) -> None:
    actor = harness.connect("a", slots=2)
    harness.submit(noop("1"))
    (task,) = harness.take(actor)
    harness.command(ActorCommand.DRAIN, "a")
    harness.command(ActorCommand.RESUME, "a")
    assert harness.actor("a").state is ActorState.DRAINING
    harness.submit(noop("2"))
    assert harness.take(actor) == []
    harness.disconnect(actor)
    other = harness.connect("b", slots=2)
    assert sorted(ids(harness.take(other))) == ["1", "2"]
    assert (task.attempts, task.losses) == (1, 0)


def test_an_actor_that_missed_its_drain_is_told_when_it_comes_back(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.disconnect(actor)
    harness.command(ActorCommand.DRAIN, "a")
    assert "a" not in harness.commands
    harness.connect("a")
    assert harness.commands["a"] == [ActorCommand.DRAIN]
    assert harness.actor("a").state is ActorState.DRAINING
    harness.connect("a", incarnation=2)
    assert harness.commands["a"] == [ActorCommand.DRAIN]
    assert harness.actor("a").state is ActorState.READY
