"""Tasks without an outcome, and their waiting callers. Knows no gRPC calls; settles every task exactly once."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from parlmesh.errors import DeadlineExceeded, FleetError
from parlmesh.v1 import task_pb2 as pb

from ..large_arrays import Arrays
from ..outcomes import Outcome, abandoned


class Sink(Protocol):
    """Receives outcomes. Called on the event loop; must not wait."""

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Ends that came together, at least one."""
        ...


# A plain tuple, because one is made for every task: who waits, the task's index there, the encoded task.
_Waiting: TypeAlias = tuple[Sink, int, bytes]


class Pending:
    """By task id. The encoded task is kept for a scheduler that comes back without it."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self.arrays: Arrays | None = None
        """The source of the large arrays of outcomes."""
        self.received = 0
        self.foreign = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def add(self, task_id: str, index: int, sink: Sink, encoded: bytes, arrays: frozenset[str] = frozenset()) -> None:
        """Lets a sink wait for a task, which needs these blobs; several may wait for the same one."""
        known = self._waiting.get(task_id)
        if known is not None and known[0] is not sink:
            sink = _Both(known[0], known[1], sink, index)
        self._waiting[task_id] = (sink, index, encoded)

    def encoded(self, task_id: str) -> bytes:
        """The task as it was submitted."""
        return self._waiting[task_id][2]

    def waits(self, sink: Sink, task_id: str) -> bool:
        """Whether this sink waits for the task."""
        waiting = self._waiting.get(task_id)
        return waiting is not None and _involves(waiting[0], sink)

    def take(self, outcomes: Iterable[pb.Outcome]) -> None:
        """Settles tasks that are waited for, in order, and counts the other outcomes."""
        pop, ready, sink, arrays = self._waiting.pop, list[Outcome](), None, self.arrays
        for message in outcomes:
            task_id = message.task_id
            waiting = pop(task_id, None)
            if waiting is None:
                self.foreign += 1
                continue
            # Most outcomes of a message are for one sink, which is then called once.
            if waiting[0] is not sink:
                if sink is not None:
                    sink.settle(ready)
                sink, ready = waiting[0], []
            ready.append(Outcome(task_id, waiting[1], message, arrays))
            if arrays is not None and task_id in arrays.uses.tasks:
                arrays.ended(task_id, message)
            self.received += 1
        if sink is not None:
            sink.settle(ready)

    def settle(self, outcome: Outcome) -> None:
        """An outcome that no scheduler sent; its index is the waiting sink's."""
        waiting = self._waiting.pop(outcome.task_id, None)
        self._needs_nothing([outcome.task_id])
        if waiting is not None:
            waiting[0].settle([outcome.at(waiting[1])])

    def forget(self, task_ids: Iterable[str]) -> None:
        """Stops waiting for these tasks."""
        for task_id in task_ids:
            self._waiting.pop(task_id, None)
            self._needs_nothing([task_id])

    def leave(self, sink: Sink) -> list[tuple[str, int]]:
        """Forgets every task of a sink that has stopped waiting; returns their ids and indices."""
        left = [(task_id, index) for task_id, (one, index, _) in self._waiting.items() if one is sink]
        self.forget(task_id for task_id, _ in left)
        return left

    def close(self, error: FleetError) -> None:
        """Settles everything with the reason why no outcome will come."""
        waiting, self._waiting = self._waiting, {}
        for task_id, (sink, index, _) in waiting.items():
            sink.settle([abandoned(task_id, index, error)])
        self._needs_nothing(waiting)

    def _needs_nothing(self, task_ids: Iterable[str]) -> None:
        """Releases the large arrays of tasks that never ran or are no longer waited for."""
        arrays = self.arrays
        if arrays is not None and arrays.uses.tasks:
            for task_id in task_ids:
                if task_id in arrays.uses.tasks:
                    arrays.ended(task_id, None)


class _Both:
    """Two sinks that wait for one task, as when an id is submitted a second time."""

    def __init__(self, first: Sink, first_index: int, second: Sink, second_index: int) -> None:
        self.sinks = (first, second)
        self._indices = (first_index, second_index)

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        for sink, index in zip(self.sinks, self._indices, strict=True):
            sink.settle([outcome.at(index) for outcome in outcomes])


def _involves(sink: Sink, wanted: Sink) -> bool:
    if isinstance(sink, _Both):
        return any(_involves(one, wanted) for one in sink.sinks)
    return sink is wanted


class UnclaimedOutcomes:
    """The sink of `submit_task` and `submit_tasks`."""

    def __init__(self, *, most_outcomes: int, most_bytes: int) -> None:
        self._most_outcomes = most_outcomes
        self._most_bytes = most_bytes
        self._kept: dict[str, tuple[Outcome, int]] = {}
        self._bytes = 0
        self._waiters: dict[str, list[asyncio.Future[Outcome]]] = {}
        self.dropped = 0

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Gives each outcome to its waiting callers, or keeps it for the first caller that asks."""
        for outcome in outcomes:
            self._settle(outcome)

    def claim(self, task_id: str) -> Outcome | None:
        """Removes and returns the kept outcome."""
        outcome, size = self._kept.pop(task_id, (None, 0))
        self._bytes -= size
        return outcome

    async def wait(self, task_id: str, seconds: float) -> Outcome:
        """The outcome of a task that is known to be pending."""
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(task_id, []).append(waiter)
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            raise no_outcome(task_id, seconds) from None
        finally:
            self._leave(task_id, waiter)

    def _settle(self, outcome: Outcome) -> None:
        waiters = self._waiters.pop(outcome.task_id, None)
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(outcome)
        if waiters:
            return
        self._kept[outcome.task_id] = (outcome, outcome.size_bytes)
        self._bytes += outcome.size_bytes
        while len(self._kept) > self._most_outcomes or self._bytes > self._most_bytes:
            self.claim(next(iter(self._kept)))
            self.dropped += 1

    def _leave(self, task_id: str, waiter: asyncio.Future[Outcome]) -> None:
        waiters = self._waiters.get(task_id)
        if waiters is not None:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[task_id]


def no_outcome(task_id: str, seconds: float) -> DeadlineExceeded:
    """Ends the wait only: the task continues."""
    return DeadlineExceeded(
        f'task "{task_id}" has no outcome after {seconds:g} s; it still runs or waits: ask again or cancel it',
        task_id=task_id,
    )
