"""Promises to submitters: acceptance, order, dependencies, retries, cancellation, retention."""

import random
from collections.abc import Callable

import pytest

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, NotFound, ResourceExhausted
from scheduler.config import SchedulerConfig
from scheduler.core.actors.placement import ActorCommand
from scheduler.core.core import MOST_ENDED_AT_ONCE, Core
from scheduler.core.task import Placement, Priority, Task, TaskState
from tests.scheduler.conftest import Harness, ids, noop, why


def labelled(name: str, value: str) -> Placement:
    return Placement("", frozenset({(name, value)}))


def many_labels(count: int) -> Placement:
    return Placement("", frozenset((str(number), "") for number in range(count)))


def test_a_submitted_task_is_assigned_and_its_result_becomes_the_outcome(harness: Harness) -> None:
    actor = harness.connect("a")
    assert harness.submit(noop("t")) == ["t"]
    (task,) = harness.take(actor)
    assert (task.task_id, task.attempts, task.state) == ("t", 1, TaskState.RUNNING)
    harness.finish(actor, task, result=b"done", ran=0.25)
    (outcome,) = harness.outcomes
    assert (outcome.state, outcome.result, outcome.ran, outcome.actor_id) == (TaskState.SUCCEEDED, b"done", 0.25, "a")


def test_ids_left_empty_are_chosen_and_never_repeat(harness: Harness) -> None:
    harness.submit(noop("mine"))
    first = harness.submit(noop("mine"), noop(""), noop(""))
    second = harness.submit(noop(""), noop("mine"))
    assert first[0] == second[1] == "mine"
    assert len({*first, *second}) == 4
    assert len(harness.core.life.tasks) == 4


def test_submitting_a_known_id_again_changes_nothing(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t", priority=Priority.LOW))
    harness.finish(actor)
    assert harness.submit(noop("t", priority=Priority.CRITICAL)) == ["t"]
    assert harness.take(actor) == []
    assert harness.core.task("t").priority == Priority.LOW
    assert len(harness.outcomes) == 1


def test_an_empty_request_is_accepted_and_does_nothing(harness: Harness) -> None:
    assert harness.submit() == []
    assert harness.records == []


@pytest.mark.parametrize(
    ("tasks", "error", "reason"),
    [
        ([noop("good"), Task("bad", "")], InvalidInput, "MISSING_KIND"),
        ([noop("good"), noop("bad", priority=6)], InvalidInput, "UNKNOWN_PRIORITY"),
        ([noop("good"), noop("bad", queue_timeout=-1.0)], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", run_timeout=0.0)], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", body=b"x" * 101)], InvalidInput, "PAYLOAD_TOO_LARGE"),
        ([noop("good"), noop("bad", dependencies=("absent",))], InvalidInput, "UNKNOWN_DEPENDENCY"),
        ([noop("good"), noop("bad", dependencies=("bad",))], InvalidInput, "CYCLIC_DEPENDENCY"),
        ([noop("good"), noop("good")], InvalidInput, "DUPLICATE_TASK_ID"),
        ([noop("good"), noop("b" * 257)], InvalidInput, "NAME_TOO_LONG"),
        ([noop("good"), Task("bad", "k" * 70_000)], InvalidInput, "NAME_TOO_LONG"),
        ([noop("good"), noop("bad", submitter="s" * 257)], InvalidInput, "NAME_TOO_LONG"),
        ([noop("good"), noop("bad", placement=Placement("n" * 70_000))], InvalidInput, "NAME_TOO_LONG"),
        ([noop("good"), noop("bad", placement=labelled("l" * 70_000, ""))], InvalidInput, "NAME_TOO_LONG"),
        ([noop("good"), noop("bad", placement=labelled("", "l" * 70_000))], InvalidInput, "NAME_TOO_LONG"),
        ([noop("good"), noop("bad", placement=many_labels(65))], InvalidInput, "TOO_MANY_LABELS"),
        ([noop("good"), noop("bad", max_attempts=1 << 32)], InvalidInput, "INVALID_ATTEMPTS"),
        ([noop("good"), noop("bad", queue_timeout=9e18)], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", queue_timeout=float("nan"))], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", run_timeout=9e18)], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", dependencies=("x", "y", "z"))], InvalidInput, "TOO_MANY_DEPENDENCIES"),
        ([noop("good"), Task("bad", "shoggi")], FailedPrecondition, "UNKNOWN_KIND"),
        ([noop(f"t{number}") for number in range(6)], ResourceExhausted, "QUEUE_FULL"),
        ([noop(f"t{number}") for number in range(10_001)], InvalidInput, "TOO_MANY_TASKS"),
    ],
)
def test_a_batch_with_one_bad_task_is_refused_whole(
    make: Callable[..., Harness], tasks: list[Task], error: type[FleetError], reason: str
) -> None:
    harness = make(queue={"max_tasks": 5, "max_payload_bytes": 100, "max_dependencies": 2})
    actor = harness.connect("a")
    harness.records.clear()
    with pytest.raises(error) as caught:
        harness.submit(*tasks)
    assert caught.value.reason == reason
    assert harness.core.life.tasks == {}
    assert harness.records == []
    assert harness.take(actor) == []
    assert harness.core.life.statistics.unfinished == 0


def test_a_result_that_is_too_large_fails_its_attempt_and_is_not_kept(make: Callable[..., Harness]) -> None:
    harness = make(queue={"max_payload_bytes": 100})
    actor = harness.connect("a")
    harness.submit(noop("t"))
    harness.finish(actor, result=b"x" * 101)
    task = harness.core.task("t")
    assert (task.state.name, task.result, why(task).reason) == ("FAILED", b"", "INVALID_RESULT")


def test_a_circle_is_found_whatever_hangs_on_it(harness: Harness) -> None:
    circle = [noop("a", dependencies=("c",)), noop("b", dependencies=("a",)), noop("c", dependencies=("b",))]
    with pytest.raises(InvalidInput, match="cycle"):
        harness.submit(noop("start"), *circle, noop("tail", dependencies=("c", "start")))


def test_a_full_queue_refuses_with_a_hint_and_takes_again_after_work_was_done(make: Callable[..., Harness]) -> None:
    harness = make(queue={"max_tasks": 3})
    actor = harness.connect("a")
    harness.submit(noop("1"), noop("2"), noop("3"))
    with pytest.raises(ResourceExhausted) as caught:
        harness.submit(noop("4"))
    assert caught.value.retry_after_seconds > 0
    harness.finish(actor)
    harness.submit(noop("4"))
    assert harness.states("4") == ["QUEUED"]


def test_a_known_id_is_accepted_again_though_the_queue_is_full(make: Callable[..., Harness]) -> None:
    harness = make(queue={"max_tasks": 2})
    harness.submit(noop("1"), noop("2"))
    with pytest.raises(ResourceExhausted):
        harness.submit(noop("3"))
    harness.submit(noop("1"))
    assert sorted(harness.core.life.tasks) == ["1", "2"]


def test_payload_bytes_are_bounded_as_well(make: Callable[..., Harness]) -> None:
    harness = make(queue={"max_bytes": 100})
    harness.submit(noop("1", body=b"x" * 60))
    with pytest.raises(ResourceExhausted):
        harness.submit(noop("2", body=b"x" * 60))
    harness.cancel("1")
    harness.submit(noop("2", body=b"x" * 60))


def test_an_unknown_kind_waits_when_the_setting_says_so(make: Callable[..., Harness]) -> None:
    harness = make(queue={"refuse_unknown_kinds": False})
    harness.connect("a")
    harness.submit(Task("t", "shogi"))
    assert harness.states("t") == ["QUEUED"]


def test_critical_runs_before_queued_low_and_equal_priorities_leave_in_order(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("first"))
    harness.submit(noop("low", priority=Priority.LOW), noop("normal 1"), noop("normal 2"))
    harness.submit(noop("critical", priority=Priority.CRITICAL))
    order = []
    for _ in range(5):
        order += ids(harness.held["a"])
        harness.finish(actor)
    assert order == ["first", "critical", "normal 1", "normal 2", "low"]


def test_submitters_of_one_priority_take_turns(harness: Harness) -> None:
    actor = harness.connect("a", credits=0)
    harness.submit(*[noop(f"many {number}", submitter="many") for number in range(100)])
    harness.submit(*[noop(f"few {number}", submitter="few") for number in range(3)])
    order = []
    for _ in range(10):
        harness.report(actor, credits=1)
        order += ids(harness.held["a"])
        harness.finish(actor, credit=False)
    assert max(order.index(f"few {number}") for number in range(3)) <= 6


def test_turns_hold_between_submitters_whose_tasks_have_different_kinds(harness: Harness) -> None:
    actor = harness.connect("a", credits=0, kinds=("noop", "echo"))
    harness.submit(*[noop(f"many {number}", submitter="many") for number in range(100)])
    harness.submit(*[Task(f"few {number}", "echo", submitter="few") for number in range(3)])
    order = []
    for _ in range(10):
        harness.report(actor, credits=1)
        order += ids(harness.held["a"])
        harness.finish(actor, credit=False)
    assert max(order.index(f"few {number}") for number in range(3)) <= 6


def test_children_start_only_after_all_parents_succeeded(harness: Harness) -> None:
    actor = harness.connect("a", slots=4)
    harness.submit(noop("sum", dependencies=("x", "y")), noop("x"), noop("y"))
    x, y = harness.take(actor)
    assert harness.states("sum") == ["WAITING"]
    harness.finish(actor, x)
    assert harness.states("sum") == ["WAITING"]
    harness.finish(actor, y)
    assert ids(harness.take(actor)) == ["sum"]


def test_a_parent_that_already_succeeded_counts_as_done(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("parent"))
    harness.finish(actor)
    harness.submit(noop("child", dependencies=("parent", "parent")))
    assert ids(harness.take(actor)) == ["child"]


def test_a_failed_parent_ends_its_descendants_with_the_reason(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("parent"), noop("child", dependencies=("parent",)), noop("grandchild", dependencies=("child",)))
    (parent,) = harness.take(actor)
    harness.fail(actor, parent, retryable=False)
    assert harness.states("parent", "child", "grandchild") == ["FAILED"] * 3
    failure = why(harness.core.task("grandchild"))
    assert failure.reason == "DEPENDENCY_FAILED"
    assert "it broke" in failure.message
    harness.submit(noop("late", dependencies=("parent",)))
    assert harness.states("late") == ["FAILED"]


def test_the_end_of_a_long_chain_names_the_task_that_failed_first(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("0"), *(noop(str(number), dependencies=(str(number - 1),)) for number in range(1, 100)))
    harness.fail(actor, harness.take(actor)[0], retryable=False)
    assert why(harness.core.task("99")).message == 'dependency "0" ended FAILED: it broke'


def test_a_chain_of_ten_thousand_fails_without_recursion(harness: Harness) -> None:
    actor = harness.connect("a")
    chain = [noop("0")] + [noop(str(number), dependencies=(str(number - 1),)) for number in range(1, 10_000)]
    harness.submit(*reversed(chain))
    harness.fail(actor, harness.take(actor)[0], retryable=False)
    harness.pass_time(0.1, alive=[actor])
    assert len(harness.outcomes) == 10_000
    assert harness.core.life.statistics.unfinished == 0


def test_a_retryable_failure_is_tried_again_after_a_growing_wait(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    harness.fail(actor, harness.take(actor)[0])
    assert harness.states("t") == ["WAITING"]
    harness.pass_time(0.2, step=0.01)
    (second,) = harness.take(actor)
    assert second.attempts == 2
    harness.fail(actor, second)
    harness.pass_time(0.05, step=0.01)
    assert harness.states("t") == ["WAITING"]
    harness.pass_time(0.3, step=0.01)
    harness.fail(actor, harness.take(actor)[0])
    assert harness.states("t") == ["FAILED"]
    (outcome,) = harness.outcomes
    assert (outcome.attempts, why(outcome).reason) == (3, "HANDLER_ERROR")


def test_a_task_says_how_many_attempts_it_gets(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t", max_attempts=1))
    harness.fail(actor, harness.take(actor)[0])
    assert harness.states("t") == ["FAILED"]


def test_a_permanent_failure_is_final_at_once(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    harness.fail(actor, harness.take(actor)[0], retryable=False, reason="INVALID_PARAMETERS")
    assert why(harness.outcomes[0]).reason == "INVALID_PARAMETERS"
    assert harness.outcomes[0].attempts == 1


def test_an_assignment_that_never_arrived_is_given_out_again_without_blame(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t"))
    harness.disconnect(actor)
    back = harness.connect("a", credits=1, leases=[])
    task = harness.take(back)[-1]
    assert (task.attempts, task.losses) == (1, 0)


def test_cancelling_a_running_task_stops_it_on_its_actor(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("running"), noop("queued"), noop("child", dependencies=("queued",)))
    (running,) = harness.take(actor)
    lease = running.lease
    assert harness.cancel("running", "queued") == ["running", "queued"]
    assert harness.revoked["a"] == [lease]
    assert harness.states("running", "queued", "child") == ["CANCELLED", "CANCELLED", "FAILED"]
    harness.report(actor, results=[(*lease[:2], b"late", None, 1.0)])
    assert harness.states("running") == ["CANCELLED"]


def test_a_task_that_waits_too_long_for_a_slot_fails(harness: Harness) -> None:
    harness.submit(noop("t", queue_timeout=2.0), noop("child", dependencies=("t",)))
    harness.pass_time(1.5)
    assert harness.states("t") == ["QUEUED"]
    harness.pass_time(1.0)
    assert harness.states("t", "child") == ["FAILED", "FAILED"]
    assert why(harness.core.task("t")).reason == "QUEUE_TIMEOUT"


@pytest.mark.parametrize(
    ("placement", "sentence"),
    [
        (labelled("gpu", "1"), "no actor has the labels gpu=1, and none came within 2.0 s (queue_timeout)"),
        (Placement("nobody"), 'no actor is on node "nobody", and none came within 2.0 s (queue_timeout)'),
        (
            Placement("n", frozenset({("gpu", "1")})),
            "no actor has the labels gpu=1 on node 'n', and none came within 2.0 s (queue_timeout)",
        ),
        (Placement("n"), "no slot was free within 2.0 s (queue_timeout)"),
        (labelled("cpu", "8"), "no slot was free within 2.0 s (queue_timeout)"),
    ],
)
def test_a_task_that_no_actor_can_take_says_so_when_its_time_is_over(
    placement: Placement, sentence: str, harness: Harness
) -> None:
    actor = harness.connect("a", node_id="n", labels=(("cpu", "8"),))
    harness.submit(noop("busy"))
    harness.submit(noop("t", queue_timeout=2.0, placement=placement))
    harness.pass_time(2.5, alive=[actor])
    assert (why(harness.core.task("t")).reason, why(harness.core.task("t")).message) == ("QUEUE_TIMEOUT", sentence)


def test_a_task_that_got_its_slot_in_time_is_not_timed_out(harness: Harness) -> None:
    actor = harness.connect("a")
    harness.submit(noop("t", queue_timeout=2.0))
    harness.pass_time(5, alive=[actor])
    assert harness.states("t") == ["RUNNING"]


def test_a_task_that_waits_too_long_for_a_slot_of_its_actor_fails_and_the_actor_drops_it(harness: Harness) -> None:
    actor = harness.connect("a", credits=3)
    harness.actor("a").depth = 3
    harness.submit(noop("running", queue_timeout=2.0), noop("waits", queue_timeout=2.0), noop("patient"))
    running, waits, patient = harness.take(actor)
    harness.pass_time(1.5, alive=[actor])
    assert harness.states("waits") == ["RUNNING"]
    lease = waits.lease
    harness.pass_time(1.0)
    assert harness.states("waits") == ["RUNNING"], "only a heartbeat tells that it has not begun"
    harness.heartbeat(actor, running.lease, lease, patient.lease)
    assert harness.states("running", "waits", "patient") == ["RUNNING", "FAILED", "RUNNING"]
    assert why(waits).reason == "QUEUE_TIMEOUT"
    assert harness.revoked["a"] == [lease]
    assert not harness.actor("a").late - {running.lease_id}
    harness.finish(actor, running, patient)
    harness.hold(actor)
    assert not harness.actor("a").late


def test_a_task_that_may_have_begun_when_its_queue_timeout_ends_goes_on(harness: Harness) -> None:
    """Its actor begins the most urgent task first, and the last heartbeat may be older than what it began since."""
    actor = harness.connect("a", credits=3)
    harness.actor("a").depth = 3
    harness.submit(noop("first"))
    harness.submit(noop("next", queue_timeout=2.0))
    first, following = harness.take(actor)
    harness.hold(actor)
    harness.pass_time(2.5)
    harness.finish(actor, first)
    harness.hold(actor)
    assert harness.states("next") == ["RUNNING"]
    harness.finish(actor, following)
    assert harness.states("next") == ["SUCCEEDED"]


def test_a_queue_timeout_counts_again_for_a_task_that_came_back_from_its_actor(harness: Harness) -> None:
    actor = harness.connect("a", credits=2)
    harness.actor("a").depth = 2
    harness.submit(noop("first"), noop("moved", queue_timeout=2.0))
    harness.take(actor)
    harness.pass_time(1.5, alive=[actor])
    harness.command(ActorCommand.PAUSE, "a")
    assert harness.rebalance() == 1
    harness.pass_time(1.5, alive=[actor])
    assert harness.states("moved") == ["QUEUED"]
    harness.pass_time(1.0, alive=[actor])
    assert harness.states("moved") == ["FAILED"]


def test_finished_tasks_are_kept_for_a_bounded_number_and_time(make: Callable[..., Harness]) -> None:
    harness = make(retention={"max_tasks": 2, "max_seconds": 10.0})
    actor = harness.connect("a")
    for name in ("1", "2", "3"):
        harness.submit(noop(name))
        harness.finish(actor)
    harness.pass_time(0.1)
    with pytest.raises(NotFound):
        harness.core.task("1")
    assert harness.states("2", "3") == ["SUCCEEDED", "SUCCEEDED"]
    harness.pass_time(11, alive=[actor])
    with pytest.raises(NotFound):
        harness.core.task("3")


def test_every_error_of_the_core_is_a_fleet_error(harness: Harness) -> None:
    for call in (lambda: harness.core.task("x"), lambda: harness.actor("x")):
        with pytest.raises(FleetError):
            call()


def test_what_ends_with_one_task_ends_in_parts_and_is_known_to_be_lost_throughout(harness: Harness) -> None:
    """Everybody waits while an event is processed, so one submitter's many dependent tasks must not take long."""
    count = MOST_ENDED_AT_ONCE + 500
    root, last = Task("root", "noop"), Task("last", "noop", dependencies=(f"c{count - 1}",))
    harness.submit(root, *(Task(f"c{number}", "noop", dependencies=("root",)) for number in range(count)), last)
    harness.cancel("root")
    statistics = harness.core.life.statistics
    assert statistics.by_state[TaskState.FAILED] == MOST_ENDED_AT_ONCE
    # A scheduler that restarts now knows that the others are lost.
    again = Core(SchedulerConfig(), now=0.0, wall_time=0.0, rng=random.Random(1), lease_floor=2 << 32)
    again.recover(list(harness.journal), 0.0)
    assert again.life.tasks["last"].state is TaskState.FAILED
    assert not [task for task in again.life.tasks.values() if not task.final]
    # So does a new task that depends on one of them.
    harness.submit(Task("late", "noop", dependencies=(f"c{count - 1}",)))
    harness.stall(0.1)
    assert harness.states("late", "last") == ["FAILED", "FAILED"]
    assert statistics.by_state[TaskState.FAILED] == count + 2
    assert statistics.by_state[TaskState.WAITING] == statistics.by_state[TaskState.QUEUED] == 0


def test_queue_timeouts_that_are_due_at_once_end_in_parts(harness: Harness) -> None:
    count = MOST_ENDED_AT_ONCE + 10
    harness.submit(*(Task(f"t{number}", "noop", queue_timeout=1.0) for number in range(count)))
    failed = harness.core.life.statistics.by_state
    harness.stall(2.0)
    assert failed[TaskState.FAILED] == MOST_ENDED_AT_ONCE
    harness.stall(0.0)
    assert failed[TaskState.FAILED] == count
