"""Fault schedules keep every invariant, and the invariants detect planted bugs."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scheduler.core import dependencies, lifecycle
from scheduler.core.lifecycle import Lifecycle
from scheduler.core.queue.ready_queue import Lane, ReadyQueue
from scheduler.core.retention import Retention
from scheduler.core.task import Task
from scheduler.simulation import Options, World, run_schedule
from scheduler.store import MemoryStore
from scheduler.store.protocol import Opened

SEEDS_TO_NOTICE = 400


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_no_invariant_breaks_in_2000_schedules(first: int) -> None:
    takeovers = 0
    for seed in range(first, first + 250):
        try:
            takeovers += run_schedule(seed).books.takeovers
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    assert takeovers > 0, "some of the restarts are takeovers by a standby"


def test_no_invariant_breaks_with_a_thousand_actors() -> None:
    world = run_schedule(7, Options(actors=1000, tasks=2000, faults=100, fault_seconds=10.0))
    assert len(world.books.announced) == 2000


def test_a_seed_replays_exactly() -> None:
    first, second = run_schedule(42), run_schedule(42)
    assert first.books.announced == second.books.announced
    assert (first.now, first.books.events) == (second.now, second.books.events)


@pytest.mark.slow
def test_no_invariant_breaks_in_100000_schedules() -> None:
    for seed in range(1_000_000, 1_100_000):
        try:
            run_schedule(seed)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")


def accept_any_result(monkeypatch: pytest.MonkeyPatch) -> None:
    end_attempts = Lifecycle.end_attempts

    def sabotaged(self: Lifecycle, sender: Any, results: Sequence[Any], now: float) -> list[str]:
        for task_id, lease_id, *end in results:
            task = self.tasks.get(task_id)
            holder = sender if task is None or task.actor is None else task.actor
            current: Any = (task_id, lease_id if task is None else task.lease_id, *end)
            end_attempts(self, holder, [current], now)
        return []

    monkeypatch.setattr(Lifecycle, "end_attempts", sabotaged)


def forget_to_write_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    grant = Lifecycle.grant

    def sabotaged(self: Lifecycle, *arguments: Any) -> None:
        grant(self, *arguments)
        self.decided.leased.clear()

    monkeypatch.setattr(Lifecycle, "grant", sabotaged)


def answer_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "after_commit", lambda self, release: release())


def release_children_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def sabotaged(parent: Task) -> list[Task]:
        children, parent.children = parent.children, None
        for child in children or ():
            child.missing -= 1
        return [child for child in children or () if not child.final and child.state == 1]

    monkeypatch.setattr(dependencies, "release", sabotaged)


def ignore_returned_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def sabotaged(self: Lane, tasks: Sequence[Task]) -> int:
        self.line += tasks
        return tasks[0].number

    monkeypatch.setattr(Lane, "add", sabotaged)


def ignore_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    push = ReadyQueue.push

    def sabotaged(self: ReadyQueue, tasks: Sequence[Task]) -> Any:
        priorities = [task.priority for task in tasks]
        for task in tasks:
            task.priority = 3
        grown = push(self, tasks)
        for task, priority in zip(tasks, priorities, strict=True):
            task.priority = priority
        return grown

    monkeypatch.setattr(ReadyQueue, "push", sabotaged)
    monkeypatch.setattr(ReadyQueue, "discard", lambda self, task: None)


def start_leases_from_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    open_store = MemoryStore.open
    monkeypatch.setattr(MemoryStore, "open", lambda self, wall: Opened(1, open_store(self, wall).batches))


def keep_the_lease_of_a_lost_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    unlease = Lifecycle._unlease

    def sabotaged(self: Lifecycle, task: Task) -> None:
        actor, lease_id = task.actor, task.lease_id
        unlease(self, task)
        if actor is not None and not actor.session:
            actor.leases[lease_id] = task

    monkeypatch.setattr(Lifecycle, "_unlease", sabotaged)


def let_leases_run_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "NOT_BEGUN", 0.0)


def forget_before_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    excess = Retention.excess
    monkeypatch.setattr(Retention, "excess", lambda self, now, unannounced: excess(self, now))


@pytest.mark.parametrize(
    "sabotage",
    [
        accept_any_result,
        forget_to_write_leases,
        answer_before_the_commit,
        release_children_too_early,
        ignore_returned_tasks,
        ignore_priorities,
        start_leases_from_one_again,
        keep_the_lease_of_a_lost_actor,
        let_leases_run_while_they_wait,
        forget_before_telling,
    ],
)
def test_sabotage_is_noticed(sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    for seed in range(SEEDS_TO_NOTICE):
        try:
            run_schedule(seed)
        except AssertionError:
            return
    pytest.fail(f"{sabotage.__name__} went unnoticed in {SEEDS_TO_NOTICE} schedules")
