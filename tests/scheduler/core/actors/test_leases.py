"""Who may answer for a task: leases kept, lost, given to another and given back."""

from itertools import pairwise

import pytest

from parlmesh.errors import NotFound
from scheduler.core.actors.placement import ActorState
from scheduler.core.task import LeaseName, Task
from tests.scheduler.conftest import Harness, ids, noop, why


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


def lease_that_waits(harness: Harness, session: int, *, failing: bool) -> Task:
    """A first lease while the store fails, or a second one while it hangs: neither is told before the commit."""
    harness.submit(noop("t", run_timeout=1.0))
    if failing:
        harness.hang_disk(failing=True)
    else:
        harness.fail(session, *harness.take(session), credit=False)
        harness.pass_time(1.0)
        harness.hang_disk(failing=False)
    harness.report(session, credits=1)
    (task,) = harness.take(session)
    assert harness.waited_for_commit == [task.lease]
    return task


@pytest.mark.parametrize("failing", [True, False])
def test_a_lease_begins_when_it_is_sent_however_long_its_commit_takes(harness: Harness, failing: bool) -> None:
    session = harness.connect("a", credits=0 if failing else 1)
    task = lease_that_waits(harness, session, failing=failing)
    lease = task.lease
    # Nobody has been told: more than three leases and the run_timeout pass.
    for _ in range(40):
        harness.heartbeat(session)
        harness.pass_time(1.0)
    harness.stall(30)
    assert (task.lease, task.losses, harness.states("t")) == (lease, 0, ["RUNNING"])
    harness.heal_disk()
    harness.pass_time(9.0)
    assert task.lease == lease
    harness.pass_time(2.0)
    assert task.losses == 1


@pytest.mark.parametrize("restarted", [True, False])
def test_a_lease_that_its_actor_never_heard_of_is_not_blamed_for_the_loss(harness: Harness, restarted: bool) -> None:
    session = harness.connect("a", credits=0)
    task = lease_that_waits(harness, session, failing=True)
    harness.disconnect(session)
    if restarted:
        harness.connect("a", credits=0, incarnation=2)
    else:
        harness.pass_time(4)
    assert (task.losses, task.attempts, harness.states("t")) == (0, 0, ["QUEUED"])
    harness.heal_disk()
    assert harness.states("t") == ["QUEUED"]


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


def test_invented_leases_are_answered_a_hundred_to_an_interval_however_often_they_are_sent(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    (task,) = harness.take(actor)
    invented = [LeaseName(f"no-{number}", 10_000 + number, 1) for number in range(150)]
    harness.revoked.clear()
    for _ in range(5):
        # Its real lease is the last one.
        harness.heartbeat(actor, *invented, task.lease)
    assert len(harness.revoked["a"]) == 100
    assert harness.core.sessions.by_number[actor].named == {task.lease_id}
    harness.pass_time(1.5, alive=[actor])
    harness.heartbeat(actor, *invented[100:], task.lease)
    assert harness.revoked["a"] == invented
    assert harness.states("t") == ["RUNNING"]


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
    harness.actor("a").depth = 5
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
    assert harness.actor("a").state is ActorState.READY
    harness.pass_time(11)
    assert harness.states("t") == ["QUEUED"]


def test_cancelling_leaves_finished_tasks_alone_and_ignores_unknown_ids(harness: Harness) -> None:
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


def test_a_node_that_holds_tasks_past_their_time_gets_no_more_under_whatever_ids(harness: Harness) -> None:
    """Its heartbeats keep the leases alive, and it answers nothing."""
    sessions = [harness.connect(f"a-{number}", node_id="silent", slots=2) for number in range(3)]
    harness.submit(*(noop(f"t-{number}", run_timeout=5.0) for number in range(6)))
    harness.pass_time(20, alive=sessions)
    actors = [harness.actor(f"a-{number}") for number in range(3)]
    assert [actor.quarantined for actor in actors] == [True] * 3
    assert not any(actor.leases for actor in actors)
    well = harness.connect("b", slots=6)
    harness.pass_time(5, alive=[*sessions, well])
    assert set(harness.states(*(f"t-{number}" for number in range(6)))) == {"RUNNING"}
    assert len(harness.actor("b").leases) == 6


def test_an_assignment_that_was_taken_back_before_it_was_sent_is_unreadable_and_costs_no_credit(
    harness: Harness,
) -> None:
    session = harness.connect("a", slots=2)
    harness.submit(noop("kept"), noop("cancelled"))
    tasks = harness.take(session)
    lease_ids = [task.lease_id for task in tasks]
    assert harness.core.standing(session, tasks, lease_ids) == tasks
    assert harness.actor("a").credits == 0
    harness.cancel("cancelled")
    assert ids(harness.core.standing(session, tasks, lease_ids)) == ["kept"]
    assert harness.actor("a").credits == 1
    harness.submit(noop("next"))
    assert "next" in ids(harness.held["a"])


def test_a_lease_cannot_be_known_from_the_one_before(harness: Harness) -> None:
    session = harness.connect("a")
    leases = []
    for number in range(50):
        harness.submit(noop(str(number)))
        (task,) = harness.take(session)
        leases.append(task.lease_id)
        harness.finish(session, task)
    steps = [after - before for before, after in pairwise(leases)]
    assert min(steps) > 0
    assert len(set(steps)) > 45


def test_nothing_is_sent_over_a_stream_that_was_replaced(harness: Harness) -> None:
    session = harness.connect("a")
    harness.submit(noop("t"))
    tasks = harness.take(session)
    lease_ids = [task.lease_id for task in tasks]
    harness.connect("a", leases=[task.lease for task in tasks])
    assert harness.core.standing(session, tasks, lease_ids) == []


def test_knowing_the_full_name_of_another_s_lease_earns_only_a_strike(harness: Harness) -> None:
    owner = harness.connect("a-1", node_id="a")
    harness.submit(noop("t"))
    (task,) = harness.take(owner)
    thief = harness.connect("b-1", node_id="b", leases=[task.lease])
    assert harness.welcomes["b-1"] == []
    harness.heartbeat(thief, task.lease)
    assert harness.revoked["b-1"] == [task.lease]
    harness.finish(thief, task, result=b"forged", credit=False)
    assert harness.states("t") == ["RUNNING"]
    strikes = harness.core.sessions.quarantine.strikes
    assert (strikes.count("a", harness.now), strikes.count("b", harness.now)) == (0, 1)
    harness.finish(owner, task, result=b"true")
    assert harness.core.task("t").result == b"true"


def test_knowing_the_name_of_another_s_lost_lease_cannot_end_it_either(harness: Harness) -> None:
    owner = harness.connect("a-1", node_id="a")
    harness.submit(noop("t"))
    (task,) = harness.take(owner)
    lease = task.lease
    thief = harness.connect("b-1", node_id="b", kinds=("other",))
    harness.disconnect(owner)
    harness.pass_time(60.0, alive=[thief])
    assert (harness.states("t"), task.actor, task.lease_id) == (["QUEUED"], None, lease.lease_id)
    harness.finish(thief, task, result=b"forged", credit=False)
    harness.connect("b-1", node_id="b", kinds=("other",), leases=[lease])
    assert (harness.welcomes["b-1"], harness.states("t")) == ([], ["QUEUED"])
    # Its own actor may still answer.
    again = harness.connect("a-1", node_id="a", leases=[lease])
    harness.finish(again, task, result=b"true")
    assert harness.core.task("t").result == b"true"
