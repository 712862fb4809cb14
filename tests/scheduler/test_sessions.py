"""What the core promises about actors: leases, losses, placement, balance, commands."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput, NotFound
from scheduler.placement import ActorCommand, ActorState
from scheduler.task import Failure, Placement, Priority, Task
from tests.scheduler.conftest import Harness


def noop(task_id: str, **options: Any) -> Task:
    return Task(task_id, "noop", **options)


def why(task: Task) -> Failure:
    assert task.failure is not None
    return task.failure


def ids(tasks: Iterable[Task]) -> list[str]:
    return [task.task_id for task in tasks]


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


def test_a_result_of_a_lease_given_to_another_is_refused_and_counted(harness: Harness) -> None:
    slow = harness.connect("slow")
    harness.submit(noop("t"))
    (task,) = harness.take(slow)
    old = task.lease
    other = harness.connect("other")
    harness.pass_time(11, alive=[other])
    (again,) = harness.take(other)
    assert again.task_id == "t"
    assert again.lease_id > old.lease_id
    harness.report(slow, results=[(*old[:2], b"late", None, 1.0)])
    assert harness.outcomes == []
    assert harness.core.life.statistics.stale_results == 1
    harness.finish(other, again, result=b"right")
    assert [task.result for task in harness.outcomes] == [b"right"]


def test_only_a_second_lease_of_a_task_waits_for_the_commit(harness: Harness) -> None:
    first = harness.connect("a")
    harness.submit(noop("t"))
    assert harness.waited_for_commit == []
    second = harness.connect("b")
    harness.pass_time(11, alive=[second])
    (task,) = harness.take(second)
    assert harness.waited_for_commit == [task.lease]
    assert harness.take(first)


def test_a_late_result_counts_while_nobody_else_has_the_task(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.pass_time(11)
    assert harness.states("t") == ["QUEUED"]
    harness.report(actor, results=[(*lease[:2], b"late", None, 1.0)])
    assert [task.result for task in harness.outcomes] == [b"late"]
    assert harness.core.life.queue.ready == 0


def test_a_second_result_of_the_same_lease_is_refused(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.fail(actor, task)
    harness.report(actor, results=[(*lease[:2], b"twice", None, 1.0)])
    assert harness.states("t") == ["WAITING"]
    assert harness.core.life.statistics.stale_results == 1


def test_an_actor_cannot_answer_for_another(harness: Harness) -> None:
    holder = harness.connect("holder")
    thief = harness.connect("thief", credits=0)
    harness.submit(noop("t"))
    (task,) = harness.take(holder)
    harness.report(thief, results=[(*task.lease[:2], b"forged", None, 1.0)])
    assert harness.outcomes == []
    assert harness.core.life.statistics.stale_results == 1
    harness.disconnect(holder)
    harness.pass_time(4, alive=[thief])
    back = harness.connect("thief", credits=0, incarnation=2, leases=[task.lease])
    assert harness.welcomes["thief"] == []
    harness.report(back, results=[(*task.lease[:2], b"forged", None, 1.0)])
    assert harness.states("t") == ["QUEUED"]


def test_an_actor_of_another_node_cannot_take_over_an_id_that_is_at_work(harness: Harness) -> None:
    first = harness.connect("a", node_id="node-1")
    with pytest.raises(AlreadyExists, match="node-1"):
        harness.connect("a", node_id="node-2", incarnation=9)
    assert harness.core.actor("a").session == first
    harness.disconnect(first)
    harness.connect("a", node_id="node-2", incarnation=9)
    assert harness.core.actor("a").node_id == "node-2"


def test_heartbeats_keep_a_lease_for_ever(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    harness.pass_time(100, alive=[actor])
    assert harness.states("t") == ["RUNNING"]


def test_a_lease_missing_from_the_heartbeats_is_given_away(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.submit(noop("kept"), noop("forgotten"))
    kept, forgotten = harness.take(actor)
    for _ in range(12):
        harness.heartbeat(actor, kept.lease)
        harness.pass_time(1.0)
    assert kept.attempts == 1
    assert forgotten.losses == 1
    assert forgotten.task_id in [lease.task_id for lease in harness.revoked["a"]]


def test_a_heartbeat_with_an_unknown_lease_is_answered_with_a_revocation(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.cancel("t")
    harness.revoked.clear()
    harness.heartbeat(actor, lease)
    assert harness.revoked["a"] == [lease]


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
    assert harness.core.actor("a").state is ActorState.READY


def test_a_lost_lease_is_given_back_while_nobody_else_has_the_task(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    lease = task.lease
    harness.disconnect(actor)
    harness.pass_time(5)
    assert harness.states("t") == ["QUEUED"]
    harness.connect("a", credits=0, leases=[lease])
    assert harness.states("t") == ["RUNNING"]
    assert task.losses == 0


def test_a_task_that_loses_three_actors_is_quarantined(harness: Harness) -> None:
    harness.submit(noop("poison"))
    for name in ("a", "b", "c"):
        actor = harness.connect(name)
        harness.disconnect(actor)
        harness.pass_time(4)
    assert harness.states("poison") == ["QUARANTINED"]
    assert why(harness.outcomes[0]).reason == "ACTOR_LOST"
    actor = harness.connect("d")
    assert harness.take(actor) == []


def test_tasks_that_had_not_started_are_not_blamed_for_a_lost_actor(harness: Harness) -> None:
    actor = harness.connect("a", credits=5)
    harness.core.actor("a").depth = 5
    harness.submit(*[noop(str(number)) for number in range(5)])
    assert len(harness.take(actor)) == 5
    harness.disconnect(actor)
    harness.pass_time(4)
    assert [harness.core.task(str(number)).losses for number in range(5)] == [1, 0, 0, 0, 0]


def test_a_stall_of_the_scheduler_itself_expires_nothing(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    harness.pass_time(1, alive=[actor])
    harness.stall(30)
    assert harness.states("t") == ["RUNNING"]
    assert harness.core.actor("a").state is ActorState.READY
    harness.pass_time(11)
    assert harness.states("t") == ["QUEUED"]


def test_a_silent_actor_is_lost_and_gets_nothing_until_it_is_heard_again(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.pass_time(11)
    assert harness.core.actor("a").state is ActorState.LOST
    harness.submit(noop("t"))
    assert harness.take(actor) == []
    harness.heartbeat(actor)
    assert ids(harness.take(actor)) == ["t"]


def test_cancelling_leaves_finished_tasks_alone_and_knows_no_strangers(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("done"), noop("open"))
    harness.finish(actor)
    assert harness.cancel("done") == []
    with pytest.raises(NotFound):
        harness.cancel("open", "stranger")
    assert harness.states("open") == ["RUNNING"]


def test_an_actor_that_ignores_the_run_timeout_loses_the_task(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t", run_timeout=5.0, max_attempts=1))
    harness.pass_time(14, alive=[actor])
    assert harness.states("t") == ["RUNNING"]
    harness.pass_time(4, alive=[actor])
    assert why(harness.core.task("t")).reason == "DEADLINE_EXCEEDED"
    assert [lease.task_id for lease in harness.revoked["a"]] == ["t"]


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
    harness.now += 0.1 - lead - 0.001
    harness.foresee()
    assert ids(harness.take(actor)) == ["1"]
    harness.now = harness.core.next_ending
    harness.foresee()
    (second,) = harness.take(actor)
    assert second.task_id == "2"
    # One in advance, however often it is looked at; the one in advance has its own end, a whole run later.
    harness.foresee()
    assert harness.take(actor) == []
    assert harness.core.next_ending == pytest.approx(harness.now + 0.1)


def test_the_task_held_in_advance_is_the_only_one_after_the_end(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(9)])
    harness.finish(actor, ran=0.1)
    (first,) = harness.take(actor)
    harness.now = harness.core.next_ending
    harness.foresee()
    harness.finish(actor, first, ran=0.1)
    assert len(harness.core.actor("a").leases) == 1


def test_the_end_of_uneven_tasks_is_not_foreseen(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(9)])
    for ran in (0.1, 3.0, 0.1, 2.0):
        harness.finish(actor, ran=ran)
    harness.now += 10.0
    harness.foresee()
    assert len(harness.core.actor("a").leases) == 1


def test_long_tasks_are_not_held_in_advance_and_short_ones_are(harness: Harness) -> None:
    actor = harness.connect("a", credits=100)
    harness.submit(*[noop(str(number)) for number in range(200)])
    assert len(harness.held["a"]) == 1
    harness.finish(actor, ran=0.1)
    assert len(harness.held["a"]) == 1
    for _ in range(20):
        harness.finish(actor, ran=0.0001)
    assert harness.core.actor("a").depth > 1
    deepest = 0
    for _ in range(20):
        harness.submit(*[noop("") for _ in range(50)])
        deepest = max(deepest, len(harness.core.actor("a").leases))
        harness.finish(actor, ran=0.0001)
    assert 10 < deepest <= 100


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
    assert harness.core.actor("a").state is ActorState.PAUSED


def test_a_command_to_an_unknown_actor_changes_none(harness: Harness) -> None:
    harness.connect("a")
    with pytest.raises(NotFound, match="stranger"):
        harness.command(ActorCommand.PAUSE, "a", "stranger")
    assert harness.core.actor("a").state is ActorState.READY
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


def test_an_actor_that_leaves_with_work_gives_it_back_at_once(harness: Harness) -> None:
    actor = harness.connect("a")
    other = harness.connect("b", credits=0)
    harness.submit(noop("t"))
    harness.report(actor, leaving=True)
    harness.report(other, credits=1)
    harness.disconnect(actor)
    assert ids(harness.take(other)) == ["t"]


def test_rebalancing_moves_what_has_not_started_to_free_slots(harness: Harness) -> None:
    slow = harness.connect("slow", credits=4)
    harness.core.actor("slow").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    assert len(harness.take(slow)) == 4
    quick = harness.connect("quick", slots=2)
    assert harness.rebalance() == 2
    moved = harness.take(quick)
    assert len(moved) == 2
    assert sorted(lease.task_id for lease in harness.revoked["slow"]) == sorted(ids(moved))
    assert all((task.attempts, task.losses) == (1, 0) for task in moved)
    assert len(harness.core.actor("slow").leases) == 2


def test_what_rebalancing_takes_is_not_given_back_to_the_same_actor(harness: Harness) -> None:
    slow = harness.connect("slow", credits=50)
    harness.core.actor("slow").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    assert len(harness.take(slow)) == 4
    quick = harness.connect("quick", slots=2)
    assert harness.rebalance() == 2
    assert len(harness.take(quick)) == 2
    assert harness.take(slow) == []


def test_time_alone_moves_held_tasks_off_a_slow_actor(harness: Harness) -> None:
    slow = harness.connect("slow", credits=4)
    harness.core.actor("slow").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    quick = harness.connect("quick", slots=3)
    harness.pass_time(2, alive=[slow, quick])
    assert len(harness.take(quick)) == 3


def test_held_tasks_leave_a_paused_actor_and_running_ones_stay(harness: Harness) -> None:
    actor = harness.connect("a", credits=4)
    harness.core.actor("a").depth = 4
    harness.submit(*[noop(str(number)) for number in range(4)])
    harness.command(ActorCommand.PAUSE, "a")
    assert harness.rebalance() == 3
    assert len(harness.core.actor("a").leases) == 1
    other = harness.connect("b", slots=3)
    assert len(harness.take(other)) == 3
    assert actor


def test_lost_actors_are_listed_for_a_while(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.disconnect(actor)
    harness.pass_time(100, step=1)
    assert harness.core.actor("a").state is ActorState.LOST
    harness.pass_time(300, step=1)
    with pytest.raises(NotFound):
        harness.core.actor("a")


def test_results_of_a_replaced_stream_still_count(harness: Harness) -> None:
    old = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(old)
    harness.connect("a", credits=0, leases=[task.lease])
    harness.finish(old, task)
    assert harness.states("t") == ["SUCCEEDED"]


@pytest.mark.parametrize(("hello", "word"), [({"slots": 0}, "slots"), ({"kinds": ()}, "kinds")])
def test_a_hello_that_makes_no_sense_is_refused(harness: Harness, hello: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidInput, match=word):
        harness.connect("a", credits=0, **hello)
    assert harness.core.life.fleet.actors == {}


def test_joining_actors_take_their_share_at_once(harness: Harness) -> None:
    harness.submit(*[noop(str(number)) for number in range(20)])
    for number in range(10):
        actor = harness.connect(f"a{number}", slots=2)
        assert len(harness.take(actor)) == 2
