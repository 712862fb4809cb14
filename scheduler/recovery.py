"""Rebuilds a core from its journal: the same tables, filled by what was decided before."""

from collections.abc import Iterable

from .actions import Paused, Returned
from .lifecycle import Lifecycle
from .placement import Actor
from .records import DamagedJournal, Ended, Forgotten, Leased, StoredRecord, Submitted
from .task import NO_LEASE, Task, TaskState


class Recovery:
    """Takes every record in order, then brings the tables to life."""

    def __init__(self, life: Lifecycle, now: float) -> None:
        self._life = life
        self._now = now
        self._by_number: dict[int, Task] = {}
        self._leased: dict[int, str] = {}

    def replay(self, records: Iterable[StoredRecord]) -> None:
        for record in records:
            self._apply(record)

    def finish(self) -> None:
        """Counts dependencies, fills the queue, and keeps every lease for an actor that may come back for it."""
        life = self._life
        # A condensed journal has the finished tasks last; lists are by number.
        life.tasks = {task.task_id: task for task in sorted(life.tasks.values(), key=lambda task: task.number)}
        newest = float("-inf")
        for task in life.tasks.values():
            # The wall clock may have jumped between two submits; their order is what counts.
            task.submit_time = newest = max(newest, task.submit_time)
        waiting: list[Task] = []
        for task in [task for task in life.tasks.values() if not task.final]:
            actor_id = self._leased.get(task.number)
            if actor_id is None:
                waiting.append(task)
            else:
                life.hold(task, self._actor(actor_id), self._now)
        life.make_ready([task for task in waiting if not task.dependencies], self._now)
        for task in waiting:
            if task.dependencies:
                life.attach(task, self._now)
        life.fresh.clear()

    def _apply(self, record: StoredRecord) -> None:
        life = self._life
        if isinstance(record, Submitted):
            task = record.task
            life.next_number = max(life.next_number, task.number + 1)
            task.submit_time = self._monotonic(record.wall_time)
            self._by_number[task.number] = task
            life.enter(task)
        elif isinstance(record, Leased):
            task = self._task(record.number)
            task.lease_id, task.attempts, task.actor_id = record.lease_id, record.attempts, record.actor_id
            task.leased_before = True
            self._leased[record.number] = record.actor_id
            life.last_lease = max(life.last_lease, record.lease_id)
        elif isinstance(record, Returned):
            task = self._task(record.number)
            task.attempts, task.failures, task.losses = record.attempts, record.failures, record.losses
            task.lease_id = NO_LEASE
            self._leased.pop(record.number, None)
        elif isinstance(record, Ended):
            self._end(record)
        elif isinstance(record, Forgotten):
            for task in life.retention.drop(record.tasks):
                del life.tasks[task.task_id]
        elif isinstance(record, Paused):
            self._actor(record.actor_id).paused = record.paused

    def _end(self, record: Ended) -> None:
        task = self._task(record.number)
        self._leased.pop(record.number, None)
        del self._by_number[record.number]
        task.state, task.attempts, task.actor_id = record.state, record.attempts, record.actor_id
        task.ran, task.result, task.failure = record.ran, record.result, record.failure
        task.end_time = self._monotonic(record.wall_time)
        task.lease_time = task.submit_time + record.queued
        self._life.leave_finished(task)

    def _monotonic(self, wall_time: float) -> float:
        """The same moment on this scheduler's clock, never in the future."""
        return min(self._now, wall_time - self._life.wall_offset)

    def _task(self, number: int) -> Task:
        task = self._by_number.get(number)
        if task is None or task.state >= TaskState.SUCCEEDED:
            raise DamagedJournal(f"the journal speaks of task number {number} before it was submitted or after its end")
        return task

    def _actor(self, actor_id: str) -> Actor:
        actor = self._life.fleet.actors.get(actor_id)
        if actor is None:
            actor = self._life.fleet.actors[actor_id] = Actor(actor_id)
            # Actors wait longer between their tries when the scheduler was away: they get a whole lease.
            leases = self._life.config.leases
            actor.lost_at = self._now + max(0.0, leases.duration_seconds - leases.reconnect_seconds)
        return actor
