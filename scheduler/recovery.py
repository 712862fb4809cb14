"""Rebuilds a core from its journal: the same tables, filled by what was decided before."""

from collections.abc import Iterable

from .actions import Returned
from .condensing import Condenser, Trail
from .lifecycle import Lifecycle
from .placement import Actor
from .records import DamagedJournal, Leased, Submitted, decode
from .stored_task import StoredTask
from .task import Task


class Recovery:
    """Reads every batch, then brings the tables to life."""

    def __init__(self, life: Lifecycle, now: float) -> None:
        self._life = life
        self._now = now
        self._offset = life.wall_offset

    def recover(self, batches: Iterable[bytes]) -> None:
        condenser = Condenser()
        condenser.read_all(batches)
        finished = [
            StoredTask(number, trail.submitted, trail.finished, self._monotonic)
            for number, trail in condenser.finished.items()
        ]
        unfinished = [self._unfinished(number, trail) for number, trail in sorted(condenser.unfinished.items())]
        life = self._life
        # Lists are by number; a condensed journal has the finished tasks last.
        life.tasks = {task.task_id: task for task in sorted((*unfinished, *finished), key=lambda task: task.number)}
        life.next_number = 1 + max((task.number for task in life.tasks.values()), default=0)
        life.retention.keep_stored(finished)
        self._revive(unfinished)
        for actor_id in condenser.paused:
            self._actor(actor_id).paused = True

    def _unfinished(self, number: int, trail: Trail) -> Task:
        records = list(decode(trail.submitted + trail.returned + trail.leased))
        submitted = records[0]
        assert isinstance(submitted, Submitted)
        task = submitted.task
        # When its earlier attempts were leased is not kept; it matters only if it ends without another.
        task.submit_time = task.lease_time = self._monotonic(submitted.wall_time)
        for record in records[1:]:
            if isinstance(record, Returned):
                task.attempts, task.failures, task.losses = record.attempts, record.failures, record.losses
            elif isinstance(record, Leased):
                task.lease_id, task.attempts, task.actor_id = record.lease_id, record.attempts, record.actor_id
                task.leased_before = True
            else:
                raise DamagedJournal(f"task number {number} is unfinished and has a record {record}")
        return task

    def _revive(self, tasks: list[Task]) -> None:
        """Counts dependencies, fills the queue, and keeps every lease for an actor that may come back for it."""
        life = self._life
        newest = float("-inf")
        for task in tasks:
            # The wall clock may have jumped between two submits; their order is what counts.
            task.submit_time = newest = max(newest, task.submit_time)
            life.enter(task)
        for task in tasks:
            if task.leased_before:
                life.hold(task, self._actor(task.actor_id), self._now)
        waiting = [task for task in tasks if not task.leased_before]
        life.make_ready([task for task in waiting if not task.dependencies], self._now)
        for task in waiting:
            if task.dependencies:
                life.attach(task, self._now)
        life.fresh.clear()

    def _monotonic(self, wall_time: float) -> float:
        """The same moment on this scheduler's clock, never in the future."""
        return min(self._now, wall_time - self._offset)

    def _actor(self, actor_id: str) -> Actor:
        actor = self._life.fleet.actors.get(actor_id)
        if actor is None:
            actor = self._life.fleet.actors[actor_id] = Actor(actor_id)
            # Actors wait longer between their tries when the scheduler was away: they get a whole lease.
            leases = self._life.config.leases
            actor.lost_at = self._now + max(0.0, leases.duration_seconds - leases.reconnect_seconds)
        return actor
