"""A core rebuilt from its journal continues where the dead one stopped."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlmesh.errors import FailedPrecondition
from scheduler.config import SchedulerConfig
from scheduler.core.actions import Notify
from scheduler.core.actors.actor_sessions import Hello
from scheduler.core.actors.placement import ActorCommand, ActorState
from scheduler.core.core import Core
from scheduler.core.task import Priority, Task
from scheduler.journal.compaction import Compactor
from scheduler.simulation.journal_replay import take_over
from scheduler.store import SqliteStore
from tests.scheduler.conftest import Harness

# Written by the previous release's scheduler before it was killed: four finished tasks, three sleeping or waiting for a
# slot, one of them more urgent, and one that depends on the last.
PREVIOUS = Path(__file__).parent / "previous" / "journal.db"


# Whether cores are rebuilt by a standby that followed the journal; see `mode`.
_standing_by: list[bool] = []


@pytest.fixture(params=["restart", "takeover"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every promise holds for a restart and for a scheduler that stood by."""
    _standing_by[:] = [True] if request.param == "takeover" else []
    yield
    _standing_by.clear()


def rebuilt(harness: Harness, *, wall_jump: float = 0.0, **settings: Any) -> Harness:
    """The same world after kill -9 and a restart; the monotonic clock restarts."""
    config = harness.config.model_dump()
    copy = Harness(**{**config, **{key: {**config[key], **value} for key, value in settings.items()}})
    copy.now = 50.0
    batches, wall_time = [batch for batch, _ in harness.records], harness.now + wall_jump
    copy.core = Core(copy.config, now=copy.now, wall_time=wall_time, lease_floor=2 << 32)
    if not _standing_by:
        unreadable = copy.core.recover(batches, copy.now)
        assert unreadable.described == []
    else:
        led = take_over(copy.core, batches, copy.now)
        assert led is copy.core
    # What the next restart will find.
    copy.records, copy.journal = list(harness.records), list(harness.journal)
    copy._collect()
    return copy


def test_queued_waiting_and_finished_tasks_are_all_there(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("done", "noop"))
    harness.finish(actor, result=b"result")
    harness.submit(Task("running", "noop"), Task("queued", "noop"), Task("child", "noop", dependencies=("queued",)))
    copy = rebuilt(harness)
    assert copy.states("done", "running", "queued", "child") == ["SUCCEEDED", "RUNNING", "QUEUED", "WAITING"]
    assert copy.core.task("done").result == b"result"
    other = copy.connect("b")
    copy.finish(other)
    assert [task.task_id for task in copy.take(other)] == ["child"]


def test_an_actor_goes_on_with_its_lease_and_its_result_is_taken(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    (task,) = harness.take(actor)
    copy = rebuilt(harness)
    back = copy.connect("a", credits=0, leases=[task.lease])
    assert copy.welcomes["a"] == [task.lease]
    copy.finish(back, task)
    assert copy.states("t") == ["SUCCEEDED"]
    assert copy.core.task("t").attempts == 1


def test_a_lease_nobody_comes_back_for_is_given_away_after_its_duration(harness: Harness) -> None:
    harness.connect("a")
    harness.submit(Task("t", "noop"))
    copy = rebuilt(harness)
    other = copy.connect("b")
    copy.pass_time(9, alive=[other])
    assert copy.states("t") == ["RUNNING"]
    copy.pass_time(2, alive=[other])
    (task,) = copy.take(other)
    assert (task.attempts, task.losses) == (2, 1)


def test_an_actor_that_comes_back_without_its_lease_is_not_blamed(harness: Harness) -> None:
    harness.connect("a", incarnation=4)
    harness.submit(Task("t", "noop"))
    copy = rebuilt(harness)
    back = copy.connect("a", incarnation=4)
    (task,) = copy.take(back)
    assert (task.attempts, task.losses) == (1, 0)


def test_an_actor_that_died_while_the_scheduler_was_away_is_counted_as_lost(harness: Harness) -> None:
    harness.submit(Task("poison", "noop"))
    for incarnation in (1, 2, 3):
        harness.connect("a", incarnation=incarnation)
        assert harness.states("poison") == ["RUNNING"]
        harness = rebuilt(harness)
    harness.connect("a", incarnation=4)
    assert harness.states("poison") == ["QUARANTINED"]


@pytest.mark.parametrize("after_seconds", [0.0, 2.0, 8.0])
def test_an_actor_with_many_slots_goes_on_with_all_it_holds_and_has_finished(
    harness: Harness, after_seconds: float
) -> None:
    actor = harness.connect("a", slots=8)
    harness.submit(*[Task(str(number), "noop") for number in range(8)])
    held = harness.take(actor)
    assert len(held) == 8
    copy = rebuilt(harness)
    other = copy.connect("b", slots=8)
    copy.pass_time(after_seconds, alive=[other])
    copy.rebalance()
    assert copy.take(other) == []
    back = copy.connect("a", slots=8, credits=0, leases=[task.lease for task in held])
    assert len(copy.welcomes["a"]) == 8
    copy.finish(back, *held, result=b"of the first attempt")
    assert {task.attempts for task in copy.outcomes} == {1}
    assert copy.states(*map(str, range(8))) == ["SUCCEEDED"] * 8


def test_tasks_held_in_advance_wait_for_their_actor_as_well(harness: Harness) -> None:
    """It may have started any of them since the scheduler last heard of it."""
    actor = harness.connect("a", slots=1, credits=50)
    harness.submit(*[Task(str(number), "noop") for number in range(20)])
    harness.finish(actor, *harness.take(actor), ran=0.0001)
    held = harness.take(actor)
    assert len(held) > 1
    harness.disconnect(actor)
    other = harness.connect("b", slots=20)
    harness.pass_time(2.0, alive=[other])
    assert harness.take(other) == []
    harness.connect("a", slots=1, credits=0, leases=[task.lease for task in held])
    assert len(harness.welcomes["a"]) == len(held)


def test_kinds_known_before_are_known_after_and_forgotten_in_time(harness: Harness) -> None:
    harness.connect("a", kinds=("rollout", "noop"))
    copy = rebuilt(rebuilt(harness), retention={"kind_seconds": 30.0})
    other = copy.connect("b", kinds=("federate",))
    copy.submit(Task("t", "rollout"))
    copy.cancel("t")
    copy.pass_time(60.0, alive=[other], step=1.0)
    assert set(copy.core.life.roster.kinds) == {"federate"}
    with pytest.raises(FailedPrecondition, match="rollout"):
        copy.submit(Task("t2", "rollout"))
    with pytest.raises(FailedPrecondition, match="rollout"):
        rebuilt(copy).submit(Task("t2", "rollout"))


def test_a_queue_timeout_goes_on_where_it_was(harness: Harness) -> None:
    harness.submit(Task("t", "noop", queue_timeout=10.0), Task("parent", "noop"))
    harness.submit(Task("child", "noop", queue_timeout=10.0, dependencies=("parent",)))
    harness.pass_time(8.0)
    harness.submit(Task("mark", "noop"))
    for wall_jump in (0.0, 7200.0, -7200.0):
        copy = rebuilt(harness, wall_jump=wall_jump)
        copy.pass_time(1.0)
        assert copy.states("t", "child") == ["QUEUED", "WAITING"]
        copy.pass_time(2.0)
        assert copy.states("t", "child") == ["FAILED", "WAITING"]


def test_a_queue_timeout_of_a_task_that_came_back_counts_from_its_return(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop", queue_timeout=10.0))
    harness.pass_time(20.0, alive=[actor])
    harness.command(ActorCommand.PAUSE, "a")
    harness.command(ActorCommand.RESET, "a")
    harness.pass_time(8.0, alive=[actor])
    harness.submit(Task("mark", "noop"))
    copy = rebuilt(harness)
    copy.pass_time(1.0)
    assert copy.states("t") == ["QUEUED"]
    copy.pass_time(2.0)
    assert copy.states("t") == ["FAILED"]


@pytest.mark.parametrize("wall_jump", [7200.0, -7200.0, 4e8])
def test_no_jump_of_the_clock_over_a_restart_forgets_an_outcome(harness: Harness, wall_jump: float) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.finish(actor)
    copy = rebuilt(harness, wall_jump=wall_jump)
    again = copy.connect("b")
    copy.submit(Task("after", "noop"))
    copy.pass_time(10.0, alive=[again])
    third = rebuilt(copy, wall_jump=2 * wall_jump)
    third.pass_time(10.0)
    assert third.states("t") == ["SUCCEEDED"]
    third.pass_time(3600.0, step=60.0)
    assert "t" not in third.core.life.tasks


def test_a_known_id_is_answered_when_the_queue_has_become_too_small_for_all(harness: Harness) -> None:
    harness.submit(*[Task(str(number), "noop") for number in range(5)])
    copy = rebuilt(harness, queue={"max_tasks": 2})
    assert copy.submit(Task("3", "noop")) == ["3"]


def test_a_long_recovery_takes_nothing_from_the_leases(harness: Harness) -> None:
    harness.connect("a")
    harness.submit(Task("t", "noop"))
    copy = rebuilt(harness)
    # The first tick comes after everything was read.
    copy.stall(30.0)
    other = copy.connect("b")
    copy.pass_time(9.0, alive=[other])
    assert copy.states("t") == ["RUNNING"]
    assert copy.core.task("t").actor_id == "a"
    copy.pass_time(2.0, alive=[other])
    assert copy.core.task("t").actor_id == "b"


def test_a_finished_task_never_runs_again(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.finish(actor)
    copy = rebuilt(harness)
    again = copy.connect("a")
    assert copy.submit(Task("t", "noop")) == ["t"]
    assert copy.take(again) == []


def test_leases_go_on_growing(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    (task,) = harness.take(actor)
    copy = rebuilt(harness)
    copy.submit(Task("next", "noop"))
    other = copy.connect("b")
    assert copy.take(other)[0].lease_id > task.lease_id


def test_order_and_priorities_survive_even_a_jump_of_the_wall_clock(harness: Harness) -> None:
    for number in range(5):
        harness.submit(Task(f"normal {number}", "noop"), Task(f"low {number}", "noop", priority=Priority.LOW))
        harness.now += 1
    for jump in (0.0, 3600.0, -3600.0):
        copy = rebuilt(harness, wall_jump=jump)
        actor = copy.connect("a", slots=10)
        order = [task.task_id for task in copy.take(actor)]
        assert order == [f"normal {n}" for n in range(5)] + [f"low {n}" for n in range(5)]


def test_attempts_and_losses_are_remembered(harness: Harness) -> None:
    harness.submit(Task("t", "noop"))
    for name in ("a", "b"):
        harness.disconnect(harness.connect(name))
        harness.pass_time(4)
    copy = rebuilt(harness)
    copy.disconnect(copy.connect("c"))
    copy.pass_time(4)
    assert copy.states("t") == ["QUARANTINED"]


def test_a_task_that_failed_before_the_restart_can_end_without_another_attempt(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("t", "noop"))
    harness.fail(actor, harness.take(actor)[0])
    copy = rebuilt(harness)
    copy.cancel("t")
    assert copy.states("t") == ["CANCELLED"]
    assert (copy.outcomes[0].attempts, copy.outcomes[0].queued_seconds) == (1, 0.0)
    assert copy.records


def test_a_paused_actor_is_still_paused(harness: Harness) -> None:
    harness.connect("a")
    harness.connect("b")
    harness.command(ActorCommand.PAUSE, "a", "b")
    harness.command(ActorCommand.RESUME, "b")
    copy = rebuilt(harness)
    copy.connect("a")
    copy.connect("b")
    assert copy.actor("a").state is ActorState.PAUSED
    assert copy.actor("b").state is ActorState.READY


def test_what_was_forgotten_stays_forgotten(harness: Harness) -> None:
    short = Harness(retention={"max_tasks": 2})
    actor = short.connect("a")
    for number in range(5):
        short.submit(Task(str(number), "noop"))
        short.finish(actor)
        short.pass_time(0.1, alive=[actor])
    assert list(rebuilt(short).core.life.tasks) == ["3", "4"]


def test_ids_chosen_after_a_restart_are_new(harness: Harness) -> None:
    first = harness.submit(Task("", "noop"))
    copy = rebuilt(harness)
    assert copy.submit(Task("", "noop")) != first
    assert len(copy.core.life.tasks) == 2


def test_recovery_asks_for_nothing_to_be_done_or_written(harness: Harness) -> None:
    harness.submit(Task("t", "noop"))
    copy = rebuilt(harness)
    assert copy.records == harness.records
    assert copy.outcomes == []


def test_an_actor_of_the_journal_is_replaced_by_an_older_start_only_once_it_holds_nothing(harness: Harness) -> None:
    harness.connect("a", incarnation=9)
    harness.submit(Task("t", "noop"))
    copy = rebuilt(harness)
    with pytest.raises(FailedPrecondition) as caught:
        copy.connect("a", incarnation=3)
    assert caught.value.reason == "OLD_INCARNATION"
    copy.pass_time(11.0)
    copy.connect("a", incarnation=3)
    assert copy.states("t") == ["RUNNING"]


def test_actors_that_are_forgotten_leave_the_journal(harness: Harness) -> None:
    for number in range(3):
        harness.disconnect(harness.connect(f"a{number}"))
    copy = rebuilt(harness)
    assert len(copy.core.life.fleet.actors) == 3
    copy.pass_time(400.0, step=1.0)
    assert rebuilt(copy).core.life.fleet.actors == {}


def test_unreadable_records_are_lost_alone_and_reported(harness: Harness) -> None:
    actor = harness.connect("a", slots=2)
    harness.submit(Task("lost", "noop"))
    harness.submit(Task("kept", "noop"))
    harness.finish(actor, *[task for task in harness.take(actor) if task.task_id == "lost"])
    harness.submit(Task("also kept", "noop"))
    batches = [batch for batch, _ in harness.records]
    # The SUBMITTED and LEASED records of a task are missing, one batch is cut short, one has an unknown kind.
    batches = [batch for batch in batches if b"lost" not in batch]
    assert len(batches) == len(harness.records) - 1
    batches += [batches[-1][:-1], bytes([99, 0, 0, 0, 0]) + bytes(8)]
    core = Core(harness.config, now=0.0, wall_time=0.0)
    unreadable = core.recover(batches, 0.0)
    assert list(core.life.tasks) == ["kept", "also kept"]
    assert unreadable.count == 3
    assert "not submitted" in unreadable.described[0]


def test_a_task_whose_record_is_garbage_is_unreadable_alone(harness: Harness) -> None:
    harness.submit(Task("good", "noop"), Task("bäd", "noop"))
    (batch, _), *_ = harness.records
    core = Core(harness.config, now=0.0, wall_time=0.0)
    unreadable = core.recover([batch.replace("bäd".encode(), b"\xff\xff\xff\xff")], 0.0)
    assert list(core.life.tasks) == ["good"]
    assert unreadable.count == 1


@pytest.mark.parametrize("compacted", [False, True])
def test_a_task_whose_parent_cannot_be_read_ends_with_its_name(harness: Harness, compacted: bool) -> None:
    """Otherwise it would run as if the parent had succeeded."""
    actor = harness.connect("a")
    harness.submit(Task("bäd", "noop"), Task("good", "noop"))
    harness.take(actor)
    harness.submit(
        Task("child", "noop", dependencies=("good", "bäd")), Task("grandchild", "noop", dependencies=("child",))
    )
    harness.submit(Task("other", "noop", dependencies=("good",)))
    submitted, *later = [batch for batch in harness.journal if "bäd".encode() in batch]
    batches = [
        batch if batch is not submitted else batch.replace("bäd".encode(), b"b\xff\xffd") for batch in harness.journal
    ]
    assert later
    if compacted:
        compactor = Compactor()
        compactor.read_all(batches)
        compactor.unreadable.add("the parent")
        compactor.unfinished.pop(1)
        batches = list(compactor.write(1 << 20))
    core = Core(harness.config, now=0.0, wall_time=0.0)
    core.recover(batches, 0.0)
    failures = {name: core.task(name).failure for name in ("child", "grandchild", "other")}
    assert failures["child"] is not None
    assert 'dependency "bäd" is unknown' in failures["child"].message
    assert failures["grandchild"] is not None
    assert failures["other"] is None
    told = [action.tasks for action in core.take_actions() if isinstance(action, Notify)]
    assert [[task.task_id for task in tasks] for tasks in told] == [["child", "grandchild"]]


def test_a_parent_that_was_forgotten_had_succeeded(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(Task("parent", "noop"), Task("child", "noop", dependencies=("parent",)))
    harness.finish(actor, credit=False)
    harness.core.life.forget(harness.core.life.retention.excess(harness.now + 10_000))
    harness.core._dispatch(harness.now)
    harness._collect()
    copy = rebuilt(harness)
    assert copy.states("child") == ["QUEUED"]


def test_nothing_of_the_last_releases_journal_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.sqlite"
    shutil.copy(PREVIOUS, path)
    store = SqliteStore(path)
    opened = store.open(2e9)
    core = Core(SchedulerConfig(), now=0.0, wall_time=2e9, lease_floor=opened.lease_floor)
    unreadable = core.recover(opened.batches, 0.0)
    store.close()
    assert unreadable.described == []
    names = [f"client-701bdc8b-{number}" for number in range(1, 9)]
    tasks = [core.task(name) for name in names]
    states = Counter(task.state.name for task in tasks)
    assert states["SUCCEEDED"] == 4
    assert states["WAITING"] == 1
    assert states["RUNNING"] + states["QUEUED"] == 3
    assert [task.kind for task in tasks] == ["echo"] * 3 + ["sleep"] * 4 + ["echo"]
    assert tasks[4].priority == Priority.HIGH
    assert tasks[7].dependencies == (names[6],)
    # And they can be given out.
    core.connect(Hello(1, "a", slots=8, kinds=("echo", "sleep")), 100.0)
    core.report(1, 100.0, credits=8)
    core.tick(200.0, 2e9 + 200.0)
    assert core.take_actions()
