"""Actors that join, disconnect, reconnect, restart and leave."""

from typing import Any

import pytest

from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput, NotFound
from scheduler.core.actors.placement import ActorState
from scheduler.core.task import LeaseName
from tests.scheduler.conftest import Harness, ids, noop


def test_an_actor_of_another_node_cannot_take_over_an_id_that_is_at_work(harness: Harness) -> None:
    first = harness.connect("a", node_id="node-1")
    with pytest.raises(AlreadyExists, match="node-1"):
        harness.connect("a", node_id="node-2", incarnation=9)
    assert harness.actor("a").session == first
    harness.disconnect(first)
    harness.connect("a", node_id="node-2", incarnation=9)
    assert harness.actor("a").node_id == "node-2"


def test_a_broken_stream_keeps_its_leases_for_the_reconnect_time(harness: Harness) -> None:
    actor = harness.connect("a")
    other = harness.connect("other", credits=0)
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.disconnect(actor)
    harness.report(other, credits=1)
    harness.pass_time(2, alive=[other])
    assert harness.states("t") == ["RUNNING"]
    back = harness.connect("a", credits=0, leases=[lease])
    assert harness.welcomes["a"] == [lease]
    harness.finish(back, task)
    assert harness.states("t") == ["SUCCEEDED"]
    assert harness.outcomes[0].attempts == 1


def test_an_actor_that_does_not_come_back_loses_its_leases(harness: Harness) -> None:
    actor = harness.connect("a")
    other = harness.connect("other", credits=0)
    harness.submit(noop("t"))
    harness.disconnect(actor)
    harness.report(other, credits=1)
    harness.pass_time(3.5, alive=[other])
    assert ids(harness.take(other)) == ["t"]


def test_a_restarted_actor_frees_its_old_leases_at_once(harness: Harness) -> None:
    harness.connect("a", incarnation=1)
    harness.submit(noop("t"))
    again = harness.connect("a", incarnation=2)
    assert harness.closed == [1]
    (task,) = harness.take(again)[1:]
    assert (task.attempts, task.losses) == (2, 1)


def test_an_older_start_of_an_actor_is_refused(harness: Harness) -> None:
    harness.connect("a", incarnation=2)
    with pytest.raises(FailedPrecondition, match="incarnation 1"):
        harness.connect("a", incarnation=1)
    assert harness.actor("a").state is ActorState.READY


def test_a_silent_actor_is_lost_and_gets_nothing_until_it_is_heard_again(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.pass_time(11)
    assert harness.actor("a").state is ActorState.LOST
    harness.submit(noop("t"))
    assert harness.take(actor) == []
    harness.heartbeat(actor)
    assert ids(harness.take(actor)) == ["t"]


def test_an_actor_that_leaves_with_work_gives_it_back_at_once(harness: Harness) -> None:
    actor = harness.connect("a")
    other = harness.connect("b", credits=0)
    harness.submit(noop("t"))
    harness.report(actor, leaving=True)
    harness.report(other, credits=1)
    harness.disconnect(actor)
    assert ids(harness.take(other)) == ["t"]


def test_lost_actors_are_listed_for_a_while(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.disconnect(actor)
    harness.pass_time(100, step=1)
    assert harness.actor("a").state is ActorState.LOST
    harness.pass_time(300, step=1)
    with pytest.raises(NotFound):
        harness.actor("a")


def test_results_of_a_replaced_stream_still_count(harness: Harness) -> None:
    old = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(old)
    harness.connect("a", credits=0, leases=[task.lease])
    harness.finish(old, task)
    assert harness.states("t") == ["SUCCEEDED"]


@pytest.mark.parametrize(
    ("hello", "word"),
    [
        ({"slots": 0}, "slots"),
        ({"slots": 10_001}, "slots"),
        ({"kinds": ()}, "kinds"),
        ({"kinds": ("",)}, "kind"),
        ({"kinds": ("k" * 257,)}, "kind"),
        ({"kinds": tuple(map(str, range(257)))}, "kinds"),
        ({"node_id": "n" * 129}, "node_id"),
        ({"labels": (("l" * 257, ""),)}, "label name"),
        ({"labels": (("", "l" * 257),)}, "label value"),
        ({"labels": tuple((str(number), "") for number in range(65))}, "labels"),
        ({"incarnation": 1 << 63}, "incarnation"),
        ({"leases": [LeaseName("t", 1, 1)] * 200_001}, "leases"),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(harness: Harness, hello: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        harness.connect("a", credits=0, **hello)
    assert harness.core.life.fleet.actors == {}


def test_joining_actors_take_their_share_at_once(harness: Harness) -> None:
    harness.submit(*[noop(str(number)) for number in range(20)])
    for number in range(10):
        actor = harness.connect(f"a{number}", slots=2)
        assert len(harness.take(actor)) == 2


def test_an_actor_without_a_name_or_with_an_endless_one_is_refused(harness: Harness) -> None:
    for name in ("", "a" * 257):
        with pytest.raises(InvalidInput, match="actor_id"):
            harness.connect(name, credits=0)
    assert harness.core.life.fleet.actors == {}


def test_an_id_belongs_to_the_node_that_proved_itself_even_while_its_actor_is_lost(harness: Harness) -> None:
    session = harness.connect("a", node_id="node-2", proven=True)
    harness.submit(noop("t"))
    (task,) = harness.take(session)
    harness.disconnect(session)
    harness.pass_time(20)
    assert harness.actor("a").state is ActorState.LOST
    with pytest.raises(AlreadyExists, match='belongs to node "node-2"'):
        harness.connect("a", node_id="node-1", incarnation=(1 << 63) - 1, leases=[task.lease], proven=True)
    harness.connect("a", node_id="node-2", incarnation=2, proven=True)
    assert harness.actor("a").state is ActorState.READY


def test_a_node_takes_back_an_id_that_begins_with_its_name(harness: Harness) -> None:
    squatter = harness.connect("node-2-1", node_id="node-1", incarnation=(1 << 63) - 1, proven=True)
    harness.submit(noop("t"))
    (task,) = harness.take(squatter)
    old = task.lease
    owner = harness.connect("node-2-1", node_id="node-2", proven=True)
    assert harness.closed == [squatter]
    assert ids(harness.take(owner)) == ["t"]
    harness.report(squatter, results=[(*old[:2], b"stolen", None, 0.1)], credits=1)
    assert (harness.core.task("t").state.name, harness.core.life.statistics.stale_results) == ("RUNNING", 1)
    harness.disconnect(squatter)
    assert harness.actor("node-2-1").node_id == "node-2"
    with pytest.raises(AlreadyExists):
        harness.connect("node-2-1", node_id="node-1", proven=True)


def test_a_new_owner_of_a_forgotten_id_cannot_answer_for_the_leases_of_its_last_owner(harness: Harness) -> None:
    first = harness.connect("a", node_id="node-2", proven=True)
    harness.submit(noop("t"))
    (task,) = harness.take(first)
    lease = task.lease
    harness.disconnect(first)
    harness.pass_time(320, step=1)
    assert harness.states("t") == ["QUEUED"]
    second = harness.connect("a", node_id="node-1", kinds=("other",), leases=[lease], proven=True)
    assert harness.welcomes["a"] == []
    harness.report(second, results=[(*lease[:2], b"stolen", None, 0.1)])
    assert harness.states("t") == ["QUEUED"]


def test_an_actor_hears_of_the_newest_start_that_is_known_of_it(harness: Harness) -> None:
    first = harness.connect("a", incarnation=100)
    harness.disconnect(first)
    harness.connect("a", incarnation=40)
    assert harness.newest_incarnation == 100
    harness.connect("b", incarnation=7)
    assert harness.newest_incarnation == 7


def test_a_start_that_is_connected_and_silent_is_not_in_the_way_of_a_clock_that_went_back(harness: Harness) -> None:
    harness.connect("a", incarnation=100)
    harness.submit(noop("t"))
    harness.pass_time(harness.core.life.config.leases.duration_seconds + 1.0)
    with pytest.raises(FailedPrecondition) as caught:
        harness.connect("a", incarnation=40)
    harness.connect("a", incarnation=int(caught.value.metadata["newest_incarnation"]) + 1)
    assert harness.core.life.fleet.actors["a"].incarnation == 101


def test_an_older_start_is_told_the_newest_only_when_that_is_not_connected(harness: Harness) -> None:
    newest = harness.connect("a", incarnation=100)
    harness.submit(noop("t"))
    with pytest.raises(FailedPrecondition) as caught:
        harness.connect("a", incarnation=40)
    assert "newest_incarnation" not in caught.value.metadata
    assert 0.0 < float(caught.value.metadata["lapse_seconds"]) <= harness.core.life.config.leases.duration_seconds
    harness.disconnect(newest)
    with pytest.raises(FailedPrecondition) as caught:
        harness.connect("a", incarnation=40)
    assert caught.value.metadata["newest_incarnation"] == "100"
