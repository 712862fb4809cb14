"""A finished task of a journal, decoded only when it is looked at: a restart must not wait for old results."""

from collections.abc import Callable
from typing import Any

from ..core.task import SUCCEEDED, Failure, Task
from .record_reader import decode, peek_finished, peek_task_id
from .records import UNREADABLE, Ended, Submitted
from .skipped_records import UnreadableRecords


class StoredTask(Task):
    """Knows its id, its state and when it ended; the rest is decoded on first use."""

    __slots__ = ("_monotonic", "_records", "size")

    def __init__(self, number: int, submitted: bytes, finished: bytes, monotonic: Callable[[float], float]) -> None:
        """`monotonic` converts a record's time to the scheduler's clock. Most slots stay unset on purpose."""
        state, time = peek_finished(finished)
        self.number = number
        self.task_id = peek_task_id(submitted)
        self.state = state
        self.end_time = monotonic(time)
        self.size = len(submitted) + len(finished)
        self._records = submitted + finished
        self._monotonic = monotonic

    def __getattr__(self, name: str) -> Any:
        """Called only for slots that are not set."""
        if not self._records:
            raise AttributeError(name)
        self._open()
        return getattr(self, name)

    def _open(self) -> None:
        records, self._records = self._records, b""
        try:
            task = self._read(records)
        except UNREADABLE as error:
            # The reader still gets an answer: the id, state and end are known.
            unreadable = UnreadableRecords()
            unreadable.add(f"finished task number {self.number}: {error}")
            unreadable.tell("a finished task")
            task = Task(self.task_id, "")
            task.submit_time = task.lease_time = self.end_time
            task.failure = None if self.state is SUCCEEDED else Failure("UNREADABLE_RECORD", str(error))
        task.number, task.state, task.end_time = self.number, self.state, self.end_time
        for slot in Task.__slots__:
            if hasattr(task, slot):
                setattr(self, slot, getattr(task, slot))

    def _read(self, records: bytes) -> Task:
        submitted, ended = decode(records)
        assert isinstance(submitted, Submitted)
        assert isinstance(ended, Ended)
        task = submitted.task
        task.submit_time = self._monotonic(submitted.time)
        task.lease_time = task.submit_time + ended.queued
        task.attempts, task.actor_id, task.ran = ended.attempts, ended.actor_id, ended.ran
        task.result, task.failure = ended.result, ended.failure
        return task
