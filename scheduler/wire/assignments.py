"""Assignments on their way to one stream."""

from collections.abc import Iterable, Iterator

from ..core.core import Core
from ..core.task import Task
from . import fast_encode
from .inputs import encoded_inputs

# What a lease that waits to be sent keeps in memory; the task itself is the queue's.
WEIGHT = 100
# Bytes of a message that surround an assignment.
_FRAME_BYTES = 4 << 10


class Assignments:
    """Leases that were granted, encoded when they can be written: what was taken back meanwhile is left out.

    A cancel therefore never overtakes an assignment that waits for its commit, nor shares a message with one.
    """

    __slots__ = ("_core", "_known", "_lease_ids", "_session", "_tasks")

    def __init__(self, core: Core, session: int, tasks: list[Task], known: dict[bytes, tuple[str, int]]) -> None:
        self._core = core
        self._session = session
        self._tasks = tasks
        # The tasks go on changing.
        self._lease_ids = [task.lease_id for task in tasks]
        self._known = known

    def __len__(self) -> int:
        return WEIGHT * len(self._tasks)

    def begin(self, now: float) -> None:
        """They waited for their commit and are put to be sent."""
        self._core.begin(self._session, self._tasks, self._lease_ids, now)

    def encode(self) -> Iterable[bytes]:
        """Each lease is looked at again when its turn comes."""
        tasks = self._tasks
        if len(tasks) == 1 or sum([len(task.body) for task in tasks]) <= fast_encode.PART_BYTES:
            standing = self._core.standing(self._session, tasks, self._lease_ids)
            return fast_encode.assignments(standing, self._known, self._inputs)
        return self._few_at_a_time()

    def _few_at_a_time(self) -> Iterator[bytes]:
        for start, end in self._portions():
            tasks = self._core.standing(self._session, self._tasks[start:end], self._lease_ids[start:end])
            yield from fast_encode.assignments(tasks, self._known, self._inputs)

    def _inputs(self, task: Task) -> bytes:
        actor = self._core.sessions.by_number[self._session]
        return encoded_inputs(task, self._core.life.tasks, actor.message_bytes - _FRAME_BYTES)

    def _portions(self) -> Iterator[tuple[int, int]]:
        start, size = 0, 0
        for position, task in enumerate(self._tasks):
            size += len(task.body)
            if size > fast_encode.PART_BYTES:
                yield start, position + 1
                start, size = position + 1, 0
        if start < len(self._tasks):
            yield start, len(self._tasks)
