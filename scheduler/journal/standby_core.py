"""A core that stands ready while another scheduler leads: it follows the journal as the leader writes it.

Tasks that wait for a slot and finished tasks may be very many; they are in its tables before it leads. The others are
few and are completed at the takeover: leased and returned tasks, and those with dependencies or a queue_timeout. A
journal with any damage is not followed; a core is then rebuilt from the compacted records, as after a restart.
"""

from itertools import islice

from ..core.core import Core
from ..core.task import WAITING, Task
from .compaction import FINISHED, LEASED, RETURNED, RETURNED_AT, SUBMITTED, Compactor, Trail
from .record_reader import decode, peek_time, read_submitted, split
from .records import UNREADABLE, DamagedJournal, Forgotten, RecordKind
from .recovery import Recovery
from .stored_task import StoredTask

FORGOTTEN = int(RecordKind.FORGOTTEN)
# Names that tasks share; when there are more, the table starts over.
_MOST_NAMES = 10_000
# How far the journal's clock may be ahead of what its tasks were dated by.
_MOST_DRIFT_SECONDS = 1.0


class Understudy:
    """Reads each batch after its compactor has; `whole` says whether it still follows."""

    def __init__(self, core: Core, compactor: Compactor, now: float) -> None:
        """Takes over the records that the compactor has read so far."""
        self._core = core
        self._life = life = core.life
        self._compactor = compactor
        self._now = now
        self._names: dict[bytes, str] = {}
        recovery = Recovery(life, now)
        finished, unfinished = recovery.enter(compactor)
        self.whole = not compactor.unreadable.count
        self._tasks = {task.number: task for task in unfinished}
        # None for a task that was forgotten in the batch in which it ended.
        self._finished: dict[int, StoredTask | None] = {task.number: task for task in finished}
        self._apart = {
            task.number: None
            for task in unfinished
            if isinstance(compactor.unfinished[task.number], Trail) or _is_special(task)
        }
        life.make_ready([task for task in unfinished if task.number not in self._apart], now)
        life.fresh.clear()
        # An empty journal has no clock yet.
        self._clocked = compactor.tasks > 0
        self._dated_by = life.journal_offset
        self._newest = unfinished[-1].submit_time if unfinished else float("-inf")

    def read(self, batch: bytes, now: float) -> None:
        if not self.whole:
            return
        self._now = now
        try:
            self._read(batch)
        except UNREADABLE:
            self.whole = False
        self.whole = self.whole and not self._compactor.unreadable.count

    def lead(self, now: float, wall_time: float, lease_floor: int) -> Core:
        """Returns the core, complete."""
        self._now = now
        life, core = self._life, self._core
        core.begin_term(now, wall_time, lease_floor)
        life.retention.keep_stored([task for task in self._finished.values() if task is not None])
        recovery = Recovery(life, now)
        recovery.wake(self._compactor, [self._tasks[number] for number in sorted(self._apart)])
        core.restore(recovery.node_records, now)
        return core

    def _read(self, batch: bytes) -> None:
        new: list[Task] = []
        for kind, number, raw in split(batch):
            if kind == SUBMITTED:
                new.append(self._submitted(number, raw))
                continue
            self._enter(new)
            if kind in (LEASED, RETURNED, RETURNED_AT):
                self._life.withdraw(self._tasks[number])
                self._apart[number] = None
            elif kind == FINISHED:
                self._end(number, raw)
            elif kind == FORGOTTEN:
                (record,) = decode(raw)
                assert isinstance(record, Forgotten)
                self._forget(record.tasks)
        self._enter(new)

    def _submitted(self, number: int, raw: bytes) -> Task:
        life = self._life
        if len(self._names) > _MOST_NAMES:
            self._names = {}
        task, time = read_submitted(raw, self._names)
        if task.task_id in life.tasks or number < life.next_number:
            raise DamagedJournal(f'task number {number} has the id "{task.task_id}" of another, or comes late')
        self._go_on_to(time)
        # As in a recovery, order counts and no time lies in the future.
        self._newest = max(self._newest, min(time - life.journal_offset, self._now))
        task.submit_time = task.lease_time = self._newest
        life.tasks[task.task_id] = self._tasks[number] = task
        life.next_number = number + 1
        return task

    def _enter(self, new: list[Task]) -> None:
        """Enters tasks for which only the submission has been read so far."""
        if not new:
            return
        self._life.enter_all(new)
        self._apart |= {task.number: None for task in new if _is_special(task)}
        self._life.make_ready([task for task in new if not _is_special(task)], self._now)
        self._life.fresh.clear()
        new.clear()

    def _end(self, number: int, raw: bytes) -> None:
        life, task = self._life, self._tasks.pop(number)
        self._apart.pop(number, None)
        life.withdraw(task)
        life.statistics.by_state[WAITING] -= 1
        life.statistics.unfinished_bytes -= len(task.body)
        life.allowances.release(task)
        task.task_class.unfinished -= 1
        self._go_on_to(peek_time(raw))
        trail = self._compactor.finished.get(number)
        if trail is None:
            self._finished[number] = None
            del life.tasks[task.task_id]
            return
        stored = StoredTask(number, trail.submitted, trail.finished, self._monotonic)
        # Replaced in place, because tasks are listed by number.
        self._finished[number] = life.tasks[task.task_id] = stored

    def _forget(self, tasks: int) -> None:
        for number in list(islice(self._finished, tasks)):
            stored = self._finished.pop(number)
            if stored is not None:
                del self._life.tasks[stored.task_id]

    def _go_on_to(self, time: float) -> None:
        """Moves the journal's clock forward to a record's time. This scheduler's clock runs at the same rate, but may
        lag by the time in which nothing was written before it started to follow."""
        life = self._life
        if not self._clocked:
            self._clocked = True
            life.journal_offset = self._dated_by = time - self._now
        if time - self._now <= life.journal_offset:
            return
        life.journal_offset = time - self._now
        shift = life.journal_offset - self._dated_by
        if shift > _MOST_DRIFT_SECONDS:
            self._dated_by = life.journal_offset
            self._newest -= shift
            for task in self._tasks.values():
                task.submit_time -= shift
                task.lease_time -= shift
            for stored in self._finished.values():
                if stored is not None:
                    stored.end_time -= shift

    def _monotonic(self, time: float) -> float:
        return min(self._now, time - self._life.journal_offset)


def _is_special(task: Task) -> bool:
    return bool(task.dependencies) or task.queue_timeout is not None
