"""The slots of one actor: which attempt runs where, and which tasks wait. Knows nothing of credits or streams."""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from parlmesh.blob_transfer import Exchange
from parlmesh.errors import FleetError, InvalidInput, NotFound
from parlmesh.handlers import Handler, HandlerError, Tail
from parlmesh.v1.fleet_service_pb2 import Assignment, TaskResult
from parlmesh.v1.task_pb2 import Payload
from parlmesh.wire.payloads import references_in

from ..metrics import ActorMetrics
from .attempt_results import CANCELLED, AttemptTimeout, failed, failure_of, given_to, outcome_of, payload_of, success
from .backlog import Backlog
from .slot import Slot


@dataclass(slots=True)
class _Attempt:
    """One assignment on its slot."""

    slot: Slot
    assignment: Assignment
    started: float
    ran: float = 0.0
    released: bool = False


class Slots:
    """Runs assignments as slots become free and hands each end to `on_end`, also that of a stopped one.

    Used as a context manager, which owns the attempts: none outlives it.
    """

    def __init__(
        self,
        slots: list[Slot],
        handlers: Mapping[str, Handler],
        *,
        metrics: ActorMetrics,
        clock: Callable[[], float],
        on_end: Callable[[str, int, TaskResult | None], None],
        on_tail: Callable[[], None],
        exchange: Exchange,
    ) -> None:
        self._slots = slots
        self._handlers = handlers
        self.result_bytes = 0
        """Largest result that can be sent; set by the owner."""
        self._metrics = metrics
        self._clock = clock
        self._on_end = on_end
        self._on_tail = on_tail
        self._exchange = exchange
        self._backlog = Backlog()
        self._waiting: set[int] = set()
        self._running: dict[int, asyncio.Task[TaskResult]] = {}
        self.tails: set[int] = set()
        """Leases of attempts that left their slots and only wait."""
        self._free = [(slot.index, clock()) for slot in slots]
        self._group = asyncio.TaskGroup()
        self._closed = False

    async def __aenter__(self) -> "Slots":
        await self._group.__aenter__()
        self._metrics.slots.inc(len(self._slots))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        self.stop_all()
        try:
            await self._group.__aexit__(kind, error, traceback)
        finally:
            self._metrics.slots.dec(len(self._slots))
            for slot in self._slots:
                await slot.close()

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def has_waiting(self) -> bool:
        """Whether any task waits for a slot."""
        return bool(self._waiting)

    def add(self, assignment: Assignment) -> None:
        """Runs it when a slot is free and nothing more urgent waits; `fill` starts it."""
        self._waiting.add(assignment.lease.lease_id)
        self._backlog.add(assignment)

    def fill(self) -> None:
        """Starts waiting tasks on the free slots, the lowest first, so that the state a slot keeps is used again."""
        while self._free and not self._closed and (assignment := self._backlog.take()) is not None:
            lease_id = assignment.lease.lease_id
            if lease_id not in self._waiting:
                continue
            self._waiting.discard(lease_id)
            index, free_since = heapq.heappop(self._free)
            self._metrics.idle_seconds.inc(self._clock() - free_since)
            self._metrics.slots_busy.inc()
            attempt = _Attempt(self._slots[index], assignment, self._clock())
            task = self._running[lease_id] = self._group.create_task(self._run(attempt))
            # Not a `finally` of the coroutine: one that is stopped before its first step never gets there.
            task.add_done_callback(partial(self._over, attempt))

    def stop(self, lease_id: int) -> bool:
        """Forgets a waiting one; stops a running one and answers True: its slot may be busy until it has stopped."""
        self._waiting.discard(lease_id)
        task = self._running.get(lease_id)
        return task is not None and task.cancel()

    def stop_all(self) -> None:
        """Stops everything."""
        self._waiting.clear()
        self._backlog.clear()
        for task in self._running.values():
            task.cancel()

    def reset(self) -> None:
        """Drops the slots' threads and processes."""
        for slot in self._slots:
            slot.reset()

    async def _run(self, attempt: "_Attempt") -> TaskResult:
        lease, kind, timeout = attempt.assignment.lease, attempt.assignment.kind, _timeout_of(attempt.assignment)
        exchange = self._exchange
        try:
            try:
                if not exchange.blobs.shared and has_blobs(attempt.assignment):
                    await _sent(exchange.fetch(given_to(attempt.assignment), lease.task_id))
                answer = await attempt.slot.run(self._handlers[kind], attempt.assignment, timeout)
            finally:
                self._release(attempt)
            payload = await self._rest(answer, attempt, timeout) if isinstance(answer, Tail) else answer
            if not exchange.blobs.shared and payload.tensors:
                await _sent(exchange.upload(references_in(payload)))
            return success(lease, payload, attempt.ran, limit_bytes=self.result_bytes)
        except Exception as error:
            return failed(lease, failure_of(error), attempt.ran)

    async def _rest(self, tail: Tail, attempt: "_Attempt", timeout_seconds: float | None) -> Payload:
        """The rest of a handler's wait, within the rest of its time."""
        lease_id, kind = attempt.assignment.lease.lease_id, attempt.assignment.kind
        left = None if timeout_seconds is None else max(0.0, timeout_seconds - attempt.ran)
        self.tails.add(lease_id)
        self._on_tail()
        try:
            async with asyncio.timeout(left) as limit:
                return payload_of(await tail.wait(), kind, self._exchange.blobs, attempt.assignment)
        except TimeoutError:
            if limit.expired():
                raise AttemptTimeout(f"{kind} ran longer than the allowed {timeout_seconds:g} seconds") from None
            raise
        finally:
            self.tails.discard(lease_id)

    def _over(self, attempt: "_Attempt", task: "asyncio.Task[TaskResult]") -> None:
        lease_id, kind = attempt.assignment.lease.lease_id, attempt.assignment.kind
        self._release(attempt)
        del self._running[lease_id]
        result = None if task.cancelled() else task.result()  # that of a stopped one is not waited for
        self._metrics.tasks.labels(kind, CANCELLED if result is None else outcome_of(result)).inc()
        self._on_end(kind, lease_id, result)

    def _release(self, attempt: "_Attempt") -> None:
        """Gives the slot to the next; once per attempt, because its tail needs none."""
        if attempt.released:
            return
        now = self._clock()
        attempt.released, attempt.ran = True, now - attempt.started
        heapq.heappush(self._free, (attempt.slot.index, now))
        self._metrics.slots_busy.dec()
        self._metrics.busy_seconds.inc(attempt.ran)
        self._metrics.run_seconds.labels(attempt.assignment.kind).observe(attempt.ran)
        self.fill()


def has_blobs(assignment: Assignment) -> bool:
    """Whether arrays of it are kept beside it."""
    payloads = [assignment.payload, *(given.result for given in assignment.inputs)]
    return any(tensor.blob for payload in payloads for tensor in payload.tensors)


async def _sent(transfer: Awaitable[None]) -> None:
    try:
        await transfer
    except FleetError as error:
        lost = isinstance(error, (InvalidInput, NotFound))
        raise HandlerError(error.message, retryable=not lost, reason=error.reason) from None


def _timeout_of(assignment: Assignment) -> float | None:
    if not assignment.HasField("run_timeout"):
        return None
    return assignment.run_timeout.seconds + assignment.run_timeout.nanos / 1e9
