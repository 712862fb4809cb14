"""A core rebuilt from its journal goes on where the dead one stopped."""

from scheduler.config import SchedulerConfig
from scheduler.core import Core
from scheduler.placement import ActorCommand, ActorState
from scheduler.sessions import Hello
from scheduler.task import Priority, Task
from tests.scheduler.conftest import Harness


def rebuilt(harness: Harness, *, wall_jump: float = 0.0) -> Harness:
    """The same world after kill -9 and a restart; the monotonic clock starts anew."""
    copy = Harness(**harness.config.model_dump())
    copy.now = 50.0
    copy.core = Core(
        SchedulerConfig.model_validate(harness.config.model_dump()),
        now=copy.now,
        wall_time=harness.now + wall_jump,
        lease_floor=2 << 32,
    )
    copy.core.recover([batch for batch, _ in harness.records], copy.now)
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
    back = copy.connect("a", incarnation=5)
    (task,) = copy.take(back)
    assert (task.attempts, task.losses) == (1, 0)


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
    assert copy.core.actor("a").state is ActorState.PAUSED
    assert copy.core.actor("b").state is ActorState.READY


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
    assert copy.records == []
    assert copy.outcomes == []


def test_an_unknown_actor_of_the_journal_can_be_replaced_by_any_incarnation(harness: Harness) -> None:
    harness.connect("a", incarnation=9)
    harness.submit(Task("t", "noop"))
    copy = rebuilt(harness)
    copy.core.connect(Hello(77, "a", incarnation=0, kinds=("noop",)), copy.now)
    assert copy.core.actor("a").session == 77
