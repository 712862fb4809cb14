"""The queue's order against a slow reference that looks at every task."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.queue import ready_queue
from scheduler.core.queue.ready_queue import Lane, ReadyQueue
from scheduler.core.task import ANYWHERE, Placement, Task, TaskState

BOOST = 10.0
KINDS = ("x", "y", "z")


def queued(queue: ReadyQueue, number: int, *, kind: str = "x", priority: int = 3, submitter: str = "me") -> Task:
    task = Task(str(number), kind, priority=priority, submitter=submitter)
    task.number, task.submit_time, task.state = number, float(number), TaskState.QUEUED
    task.task_class = queue.task_class(kind, ANYWHERE) or queue.add_class(kind, ANYWHERE)
    queue.push([task])
    return task


def take(queue: ReadyQueue, kinds: str, most: int = 1) -> list[Task]:
    classes = [found for kind in kinds if (found := queue.task_class(kind, ANYWHERE))]
    tasks = queue.take(classes, most)
    for task in tasks:
        task.state = TaskState.RUNNING
    return tasks


operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from(KINDS), st.integers(1, 5)),
        st.tuples(st.just("take"), st.sampled_from(["x", "y", "xy", "xyz", "z"]), st.integers(1, 4)),
        st.tuples(st.just("discard"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("return"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("trim"), st.just(0), st.just(0)),
    ),
    max_size=80,
)


# The queue uses different methods for many and few classes, with the same results.
few_and_many = pytest.mark.parametrize("few", [ready_queue.FEW_CLASSES, 0], ids=["few", "many"])


@few_and_many
@settings(max_examples=200)
@given(operations)
def test_one_submitters_tasks_leave_by_aged_priority_and_then_in_order(
    few: int, steps: list[tuple[str, object, int]]
) -> None:
    with patch.object(ready_queue, "FEW_CLASSES", few):
        check_order(steps)


def check_order(steps: list[tuple[str, object, int]]) -> None:
    queue = ReadyQueue(BOOST)
    ready: dict[int, Task] = {}
    running: dict[int, Task] = {}
    number = 0
    for step, what, count in steps:
        if step == "push":
            number += 1
            ready[number] = queued(queue, number, kind=str(what), priority=count)
            ready[number].task_class.unfinished += 1
        elif step == "take":
            for task in take(queue, str(what), count):
                fitting = [other for other in ready.values() if other.kind in str(what)]
                expected = min(fitting, key=lambda other: (other.submit_time - BOOST * other.priority, -other.priority))
                assert task is expected
                running[task.number] = ready.pop(task.number)
        elif step == "discard" and ready:
            task = list(ready.values())[int(str(what)) % len(ready)]
            task.state = TaskState.CANCELLED
            queue.discard(task)
            task.task_class.unfinished -= 1
            del ready[task.number]
        elif step == "leave" and ready:
            # As in a back-off or after a late result: the task may return while its old place remains.
            task = list(ready.values())[int(str(what)) % len(ready)]
            task.state = TaskState.WAITING
            queue.discard(task)
            running[task.number] = ready.pop(task.number)
        elif step == "return" and running:
            task = list(running.values())[int(str(what)) % len(running)]
            task.state = TaskState.QUEUED
            queue.push([task])
            ready[task.number] = running.pop(task.number)
        elif step == "trim":
            queue.trim()
        assert queue.ready == len(ready)
        oldest = queue.oldest()
        assert (oldest.number if oldest else None) == min(ready, default=None)
    assert len(take(queue, "xyz", 1000)) == len(ready)


@few_and_many
@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(KINDS)), min_size=1, max_size=120),
    st.integers(1, 5),
)
def test_no_submitter_gets_two_turns_more_than_another_that_waits(
    few: int, tasks: list[tuple[str, str]], most: int
) -> None:
    with patch.object(ready_queue, "FEW_CLASSES", few):
        check_turns(tasks, most)


def check_turns(tasks: list[tuple[str, str]], most: int) -> None:
    queue = ReadyQueue(BOOST)
    waiting: dict[str, int] = {}
    for number, (submitter, kind) in enumerate(tasks):
        queued(queue, number, kind=kind, submitter=submitter)
        waiting[submitter] = waiting.get(submitter, 0) + 1
    served = dict.fromkeys(waiting, 0)
    while taken := take(queue, "xyz", most):
        for task in taken:
            others = [served[name] for name, left in waiting.items() if left and name != task.submitter]
            assert served[task.submitter] <= min(others, default=10**9) + 1
            served[task.submitter] += 1
            waiting[task.submitter] -= 1
    assert sum(served.values()) == len(tasks)


def test_a_submitter_cannot_save_up_turns_while_nobody_could_run_its_tasks() -> None:
    queue = ReadyQueue(BOOST)
    for number in range(1000):
        queued(queue, number, kind="x", submitter="busy")
    for number in range(1000, 1500):
        queued(queue, number, kind="y", submitter="stuck")
    take(queue, "x", 500)
    order = [task.submitter for task in take(queue, "xy", 100)]
    assert order[40:].count("busy") >= 25


def test_cancelled_tasks_are_swept_out_of_memory() -> None:
    queue = ReadyQueue(BOOST)
    tasks = [queued(queue, number) for number in range(1000)]
    for task in tasks[1:]:
        task.state = TaskState.CANCELLED
        queue.discard(task)
    (lane,) = tasks[0].task_class.lanes.values()
    assert len(lane.line) < 100
    assert take(queue, "x", 5) == [tasks[0]]


def test_a_task_that_left_and_came_back_is_taken_once() -> None:
    queue = ReadyQueue(BOOST)
    tasks = [queued(queue, number) for number in range(3)]
    tasks[1].state = TaskState.WAITING
    queue.discard(tasks[1])
    tasks[1].state = TaskState.QUEUED
    queue.push([tasks[1]])
    assert take(queue, "x", 5) == tasks
    assert queue.ready == 0


def test_trim_forgets_idle_classes_and_keeps_those_with_unfinished_tasks() -> None:
    queue = ReadyQueue(BOOST)
    task = queued(queue, 1)
    task.task_class.unfinished = 1
    queued(queue, 2, kind="y")
    take(queue, "xy", 2)
    assert [gone.kind for gone in queue.trim()] == ["y"]
    assert queue.task_class("x", ANYWHERE) is task.task_class
    assert queue.task_class("y", ANYWHERE) is None
    assert queue.task_class("x", Placement("node")) is None


def test_a_thousand_tasks_of_a_thousand_placements_are_taken_with_a_few_looks_at_each() -> None:
    queue = ReadyQueue(BOOST)
    for number in range(1000):
        queued(queue, number, kind=f"kind-{number}")
    classes = list(queue.classes.values())
    looks = 0
    head = Lane.head

    def counted(lane: Lane) -> Task | None:
        nonlocal looks
        looks += 1
        return head(lane)

    with patch.object(Lane, "head", counted):
        assert [task.number for task in queue.take(classes, 1000)] == list(range(1000))
    assert looks <= 5 * 1000


def test_a_namespace_has_one_turn_however_many_submitters_it_names() -> None:
    queue = ReadyQueue(BOOST)
    for number in range(100):
        task = Task(str(number), "x", submitter=f"team-a/{number}")
        task.owner, task.number, task.submit_time, task.state = "team-a/", number, 0.0, TaskState.QUEUED
        task.task_class = queue.task_class("x", ANYWHERE) or queue.add_class("x", ANYWHERE)
        queue.push([task])
    for number in range(100, 110):
        queued(queue, number, submitter="bob")
    first = take(queue, "x", 20)
    assert sum(task.submitter == "bob" for task in first) >= 9
