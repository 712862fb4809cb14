import random

import pytest

from parlmesh.errors import ResourceExhausted
from parlmesh.security.config import SecurityConfig
from parlmesh.security.quotas import QuotaConfig
from scheduler.config import SchedulerConfig
from scheduler.core.core import Core
from scheduler.core.queue.submission_limits import owner_in
from scheduler.core.task import Placement, Task


def core(**quotas: float) -> Core:
    config = SchedulerConfig(security=SecurityConfig(quotas=QuotaConfig.model_validate(quotas)))
    return Core(config, now=0.0, wall_time=0.0, rng=random.Random(1))


def tasks(*names: str, body: bytes = b"", submitter: str = "") -> list[Task]:
    return [Task(name, "noop", body, submitter=submitter) for name in names]


def test_an_owner_has_so_many_unfinished_tasks_and_what_ends_makes_room() -> None:
    scheduler = core(tasks=3)
    scheduler.submit(tasks("a", "b"), 0.0, "ada")
    with pytest.raises(
        ResourceExhausted, match=r'"ada" has 2 unfinished tasks and submits 2; the limit is 3 '
    ) as error:
        scheduler.submit(tasks("c", "d"), 0.0, "ada")
    assert error.value.reason == "TOO_MANY_OWN_TASKS"
    assert error.value.retry_after_seconds > 0
    assert set(scheduler.life.tasks) == {"a", "b"}
    # Known ids are not new tasks, and others have their own room.
    scheduler.submit(tasks("a", "b", "c"), 0.0, "ada")
    scheduler.submit(tasks("x", "y", "z"), 0.0, "bob")
    scheduler.cancel(["a"], 1.0)
    scheduler.submit(tasks("d"), 1.0, "ada")
    scheduler.cancel(["b", "c", "d", "x", "y", "z"], 2.0)
    assert scheduler.life.allowances.held == {}


def test_their_bytes_count_and_so_does_how_often_they_come() -> None:
    scheduler = core(task_bytes=10, tasks_per_second=0.2)
    scheduler.submit(tasks("a", body=b"12345678"), 0.0, "ada")
    with pytest.raises(
        ResourceExhausted, match=r"of 8 bytes and submits 3; the limit is 10 \(security.quotas.task_bytes"
    ):
        scheduler.submit(tasks("b", body=b"123"), 0.0, "ada")
    scheduler.submit(tasks("b"), 0.0, "ada")
    with pytest.raises(ResourceExhausted, match=r"submits 1 tasks too soon; the limit is 0.2") as error:
        scheduler.submit(tasks("c"), 0.0, "ada")
    assert error.value.reason == "TASKS_TOO_OFTEN"
    assert error.value.retry_after_seconds == pytest.approx(5.0)
    scheduler.submit(tasks("c"), 5.0, "ada")


def test_tasks_without_an_owner_are_not_counted() -> None:
    scheduler = core(tasks=1, task_bytes=1, tasks_per_second=0.001)
    scheduler.submit(tasks("a", "b", "c", body=b"12"), 0.0)
    assert scheduler.life.allowances.held == {}


def test_after_a_restart_the_journal_s_submitters_say_whose_they_are() -> None:
    assert (owner_in("team-a/ada"), owner_in("ada"), owner_in("")) == ("team-a/", "ada", "")
    scheduler = core(tasks=2)
    revived = [Task("a", "noop", b"12", submitter="team-a/x"), Task("b", "noop", b"3", submitter="team-a/y")]
    for number, task in enumerate(revived, 1):
        task.number, task.submit_time = number, 0.0
        scheduler.life.tasks[task.task_id] = task
    scheduler.life.enter_all(revived)
    assert scheduler.life.allowances.held == {"team-a/": (2, 3)}
    with pytest.raises(ResourceExhausted):
        scheduler.submit(tasks("c"), 0.0, "team-a/")


def placed(count: int, first: int = 0) -> list[Task]:
    places = [Placement(f"node-{number}") for number in range(first, first + count)]
    return [Task(place.node_id, "noop", placement=place) for place in places]


def test_an_owner_has_so_many_different_placements_and_what_ends_makes_room() -> None:
    scheduler = core(placements=3)
    scheduler.submit(placed(2), 0.0, "team-a/")
    with pytest.raises(
        ResourceExhausted, match=r'"team-a/" would have unfinished tasks of 4 different placements; the limit is 3 '
    ) as error:
        scheduler.submit(placed(2, 2), 0.0, "team-a/")
    assert error.value.reason == "TOO_MANY_OWN_PLACEMENTS"
    # Equal placements count once, and tasks without one do not count.
    same = [Task("again", "noop", placement=Placement("node-0"))]
    scheduler.submit([*same, *tasks("a", "b", "c", "d")], 0.0, "team-a/")
    scheduler.submit(placed(3, 10), 0.0, "team-b/")
    scheduler.cancel(["node-0", "node-1"], 1.0)
    scheduler.submit(placed(2, 2), 1.0, "team-a/")


def test_placements_of_a_journal_count() -> None:
    scheduler = core(placements=2)
    revived = placed(2)
    for number, task in enumerate(revived, 1):
        task.number, task.submit_time, task.submitter = number, 0.0, "team-a/x"
        scheduler.life.tasks[task.task_id] = task
    scheduler.life.enter_all(revived)
    with pytest.raises(ResourceExhausted):
        scheduler.submit(placed(1, 5), 0.0, "team-a/")


def test_names_that_tasks_wait_for_or_are_placed_by_weigh_as_well() -> None:
    scheduler = core(task_bytes=4_000)
    scheduler.submit(tasks("parent"), 0.0, "team-a/")
    labels = frozenset((f"label-{number}", "x" * 50) for number in range(30))
    for heavy in (
        Task("child", "noop", dependencies=("parent",) * 200),
        Task("placed", "noop", placement=Placement("", labels)),
    ):
        with pytest.raises(ResourceExhausted, match="task_bytes"):
            scheduler.submit([heavy], 0.0, "team-a/")
    scheduler.submit([Task("child", "noop", dependencies=("parent",) * 40)], 0.0, "team-a/")
    scheduler.cancel(["parent"], 1.0)
    assert scheduler.life.allowances.held == {}
