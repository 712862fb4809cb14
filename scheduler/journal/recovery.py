"""Rebuilds a core from its journal: the same tables, filled with its earlier decisions."""

import math
from collections.abc import Iterable
from itertools import chain
from operator import attrgetter

from ..core.actions import Introduced, NodeRecord, Returned
from ..core.actors.placement import Actor
from ..core.lifecycle import Lifecycle
from ..core.task import NO_LEASE, Failure, Task, TaskState
from .compaction import Compactor, Trail
from .record_reader import decode, peek_time, read_submitted
from .records import UNREADABLE, Leased
from .skipped_records import UnreadableRecords
from .stored_task import StoredTask


class Recovery:
    """Reads every batch, then fills the tables."""

    def __init__(self, life: Lifecycle, now: float) -> None:
        self._life = life
        self._now = now
        # By number, when a task that had been leased started to wait again.
        self._returned_at: dict[int, float] = {}
        self.node_records: list[NodeRecord] = []

    def recover(self, batches: Iterable[bytes], warm: Compactor | None = None) -> UnreadableRecords:
        """Returns the records that could not be read. `warm` has read those before the batches."""
        compactor = warm or Compactor()
        compactor.read_all(batches)
        finished, unfinished = self.enter(compactor)
        self._life.retention.keep_stored(finished)
        self._bring_to_life(compactor, unfinished)
        return compactor.unreadable

    def enter(self, compactor: Compactor) -> tuple[list[StoredTask], list[Task]]:
        """Fills the tables and returns the finished and the unfinished tasks; none is ready or leased yet."""
        self._set_clock(compactor)
        unreadable = compactor.unreadable
        finished = list(self._finished(compactor.finished, unreadable))
        unfinished = list(self._unfinished(compactor.unfinished, unreadable))
        life = self._life
        # Lists are ordered by number; a compacted journal has the finished tasks last.
        known = sorted((*unfinished, *finished), key=attrgetter("number"))
        life.tasks = {task.task_id: task for task in known}
        if len(life.tasks) < len(known):
            life.tasks = _first_of_each_id(known, unreadable)
            finished = [task for task in finished if life.tasks[task.task_id] is task]
            unfinished = [task for task in unfinished if life.tasks[task.task_id] is task]
        life.next_number = 1 + max(chain(compactor.finished, compactor.unfinished), default=0)
        life.enter_all(unfinished)
        return finished, unfinished

    def wake(self, compactor: Compactor, tasks: list[Task]) -> None:
        """Completes tasks that were entered before; `tasks`, ordered by number, may have newer records since then."""
        for task in tasks:
            task.attempts = task.failures = task.losses = 0
            task.lease_id, task.actor_id, task.leased_before = NO_LEASE, "", False
            trail = compactor.unfinished[task.number]
            if not isinstance(trail, bytes):
                self._follow(task, trail)
        self._bring_to_life(compactor, tasks)

    def _bring_to_life(self, compactor: Compactor, unfinished: list[Task]) -> None:
        life = self._life
        for raw in compactor.actors.values():
            self._introduce(raw)
        self._revive(unfinished, compactor.gap)
        for actor_id in compactor.paused:
            self._actor(actor_id).paused = True
        life.roster.kinds.announce(compactor.kinds, self._now)
        for record in decode(b"".join(compactor.node_records.values())):
            assert isinstance(record, NodeRecord)
            self.node_records.append(record)

    def _set_clock(self, compactor: Compactor) -> None:
        """Continues the journal's clock from its newest record: how long the scheduler was down is not known."""
        unfinished = compactor.unfinished
        records = [trail.finished for trail in compactor.finished.values()]
        records += [trail.returned for trail in unfinished.values() if isinstance(trail, Trail) and trail.returned]
        if unfinished:
            # Numbers grow with time.
            last = unfinished[max(unfinished)]
            records.append(last if isinstance(last, bytes) else last.submitted)
        newest = max(map(_time, records), default=0.0)
        if newest:
            self._life.journal_offset = newest - self._now

    def _finished(self, trails: dict[int, Trail], unreadable: UnreadableRecords) -> Iterable[StoredTask]:
        for number, trail in trails.items():
            try:
                yield StoredTask(number, trail.submitted, trail.finished, self._monotonic)
            except UNREADABLE as error:
                unreadable.add(f"finished task number {number}: {error}")

    def _unfinished(self, trails: dict[int, bytes | Trail], unreadable: UnreadableRecords) -> Iterable[Task]:
        names: dict[bytes, str] = {}
        # The clock of an older journal may have jumped between two submits; their order is what counts.
        now, offset, newest = self._now, self._life.journal_offset, float("-inf")
        for number in sorted(trails):
            trail = trails[number]
            try:
                task, time = read_submitted(trail if isinstance(trail, bytes) else trail.submitted, names)
                time -= offset
                if time > newest:
                    newest = time if time < now else now
                # Times of earlier leases are not kept; they matter only if the task ends without another.
                task.submit_time = task.lease_time = newest
                if not isinstance(trail, bytes):
                    self._follow(task, trail)
                yield task
            except UNREADABLE as error:
                unreadable.add(f"unfinished task number {number}: {error}")

    def _follow(self, task: Task, trail: Trail) -> None:
        for record in decode(trail.returned + trail.leased):
            if isinstance(record, Returned):
                task.attempts, task.failures, task.losses = record.attempts, record.failures, record.losses
                self._returned_at[task.number] = self._monotonic(record.time) if record.time else self._now
            elif isinstance(record, Leased):
                task.lease_id, task.attempts, task.actor_id = record.lease_id, record.attempts, record.actor_id
                task.leased_before = True

    def _revive(self, tasks: list[Task], gap: int) -> None:
        """Counts dependencies, fills the queue, and keeps every lease for an actor that may come back for it."""
        life = self._life
        # An actor's oldest leases are taken to be running.
        for task in sorted((task for task in tasks if task.leased_before), key=lambda task: task.lease_id):
            life.hold(task, self._actor(task.actor_id), self._now)
        waiting = [task for task in tasks if not task.leased_before]
        life.make_ready([task for task in waiting if not task.dependencies], self._now)
        for task in waiting:
            if task.dependencies:
                self._attach(task, gap)
            if task.queue_timeout is not None:
                self._go_on_waiting(task, task.queue_timeout)
        # All together, because no caller waits yet.
        life.end_doomed(self._now, len(tasks))
        life.fresh.clear()

    def _attach(self, task: Task, gap: int) -> None:
        """A missing parent was forgotten after its success, or its record could not be read."""
        if task.number <= gap and task.number not in self._returned_at:
            for parent in task.dependencies:
                if parent not in self._life.tasks:
                    message = f'dependency "{parent}" is unknown; its record may be one that could not be read'
                    failure = Failure("DEPENDENCY_FAILED", message)
                    self._life.finish(task, TaskState.FAILED, self._now, failure)
                    return
        self._life.attach(task, self._now)

    def _go_on_waiting(self, task: Task, queue_timeout: float) -> None:
        """Counts the queue_timeout from the moment the task started to wait, not from the restart."""
        parents = [self._life.tasks.get(task_id) for task_id in task.dependencies]
        ended = [parent.end_time for parent in parents if parent is not None and parent.final]
        since = self._returned_at.get(task.number) or max((task.submit_time, *ended))
        if not task.missing and not task.final:
            task.ready_time = since
            self._life.timers.set(since + queue_timeout, task)

    def _monotonic(self, time: float) -> float:
        """The same moment on this scheduler's clock, never in the future."""
        return min(self._now, time - self._life.journal_offset)

    def _introduce(self, raw: bytes) -> None:
        (introduced,) = decode(raw)
        assert isinstance(introduced, Introduced)
        actor = self._actor(introduced.actor_id)
        actor.node_id, actor.incarnation, actor.slots = introduced.node_id, introduced.incarnation, introduced.slots

    def _actor(self, actor_id: str) -> Actor:
        actor = self._life.fleet.actors.get(actor_id)
        if actor is None:
            actor = self._life.fleet.actors[actor_id] = Actor(actor_id)
            # They get a whole lease, because actors wait longer between tries after the scheduler was away.
            leases = self._life.config.leases
            actor.lost_at = actor.last_seen = self._now
            actor.kept_until = self._now + max(leases.duration_seconds, leases.reconnect_seconds)
        return actor


def _first_of_each_id(tasks: Iterable[Task], unreadable: UnreadableRecords) -> dict[str, Task]:
    """Keeps the first of two tasks with one id: ids are unique, so the second is damaged."""
    found: dict[str, Task] = {}
    for task in tasks:
        if found.setdefault(task.task_id, task) is not task:
            unreadable.add(
                f'task number {task.number} has the id "{task.task_id}" of number {found[task.task_id].number}'
            )
    return found


def _time(record: bytes) -> float:
    try:
        time = peek_time(record)
    except UNREADABLE:
        return 0.0
    return time if math.isfinite(time) else 0.0
