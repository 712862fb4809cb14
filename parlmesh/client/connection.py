"""A client's line to the scheduler: takes tasks, settles their outcomes, keeps itself connected."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput, Unavailable
from parlmesh.rpc.errors import fleet_error_in
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from .config import ClientConfig
from .encoding import Encoder
from .outcomes import refused
from .outgoing import Parcel
from .pending import Pending, Sink
from .requests import TaskRequest
from .resync import Searcher
from .retry import retried, unreachable
from .sender import Sender
from .statistics import ClientCounts
from .stream import Exchange

log = get_logger("parlmesh.client")

T = TypeVar("T")

TASKS_PER_REQUEST = 10_000
"""The contract's limit for one request."""
_FAREWELL_SECONDS = 1.0
"""Time the last cancellations have to reach the scheduler when a client closes."""


class Link:
    """Works from `open` to `close`; everything runs on the loop that opened it."""

    def __init__(self, channel: grpc.aio.Channel, address: str, config: ClientConfig) -> None:
        # Ids must not meet those of another client with the same submitter.
        life = secrets.token_hex(4)
        submitter = config.submitter or f"client-{life}"
        self.pending = Pending()
        self.stub = SchedulerServiceStub(channel)
        self._channel = channel
        self._address = address
        self._config = config
        self._encoder = Encoder(submitter)
        self._prefix = f"{config.submitter or 'client'}-{life}-"
        self._count = 0
        self._rng = random.Random()  # noqa: S311 - spreads retries
        self._sender = Sender(self.pending, config, self._rng, search=self._search, cancel=self._cancel_later)
        self._searcher = Searcher(self.stub, self.pending, self._sender.outgoing, config, self._rng)
        self._exchange = Exchange(
            channel,
            submitter,
            self.pending,
            config,
            self._rng,
            take=self._sender.next_request,
            ready=self._sender.outgoing.ready,
            on_connected=self._connected,
        )
        self._first_connection = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._farewells: set[asyncio.Task[None]] = set()
        self._error: FleetError | None = None

    @property
    def counts(self) -> ClientCounts:
        """What was done so far."""
        return ClientCounts(
            pending_tasks=len(self.pending),
            submitted_tasks=self._sender.submitted,
            received_outcomes=self.pending.received,
            refused_tasks=self._sender.refused,
            resubmitted_tasks=self._searcher.resubmitted,
            forgotten_outcomes=self._searcher.forgotten + self._sender.forgotten,
            reconnects=max(0, self._exchange.connections - 1),
            foreign_outcomes=self.pending.foreign,
        )

    async def open(self) -> None:
        """Returns when outcomes can arrive; Unavailable when nobody answers in time."""
        seconds = self._config.connect_seconds
        self._keeper = asyncio.create_task(self._keep(), name="parlmesh client")
        try:
            async with asyncio.timeout(seconds):
                await self._first_connection.wait()
        except TimeoutError:
            cause = self._exchange.last_error or Unavailable("no answer")
            await self.close()
            raise unreachable(cause, "the scheduler", self._address, seconds) from None
        except BaseException:
            await self.close()
            raise
        self.check()

    async def close(self) -> None:
        """Ends every wait; tasks that were accepted go on without this client."""
        farewell = asyncio.create_task(self._farewell(), name="parlmesh client takes leave")
        try:
            # No asyncio.timeout: this may run in a task that is being cancelled, where before 3.11.3 it goes wrong.
            await asyncio.wait({farewell}, timeout=_FAREWELL_SECONDS)
        finally:
            farewell.cancel()
            self._end(Unavailable("the controller was closed", reason="CLOSED"))
            if self._keeper is not None:
                self._keeper.cancel()
                await asyncio.wait({self._keeper})
            await self._channel.close()

    def check(self) -> None:
        """Raises what ended the link."""
        if self._error is not None:
            raise self._error

    def submit_each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Submits tasks that are accepted or refused one by one; the sink gets one outcome for every index."""
        self.check()
        outgoing, parcel = self._sender.outgoing, Parcel()
        for index, request in requests:
            try:
                task_id, task = self._encoded(request)
                if request.task_id and self.pending.waits(sink, task_id):
                    raise InvalidInput(f'task id "{task_id}" is given twice in one call', reason="DUPLICATE_TASK_ID")
            except InvalidInput as error:
                sink.settle([refused(_id_of(request), index, error)])
                continue
            parcel = outgoing.pack(parcel, task_id, task)
            if request.task_id or request.dependencies:
                _mark(parcel, request)
            self.pending.add(task_id, index, sink, task)
        if parcel.tasks:
            outgoing.put(parcel)

    async def submit_whole(self, requests: Sequence[TaskRequest], sink: Sink) -> list[str]:
        """The ids, once the scheduler has accepted all; an error when it has accepted none."""
        self.check()
        parcel = Parcel(receipt=asyncio.get_running_loop().create_future())
        new = []
        for request in requests:
            task_id, task = self._encoded(request)
            parcel.add(task_id, task)
            _mark(parcel, request)
        _check_size(parcel, self._sender.outgoing.most_bytes)
        for task_id, task in zip(parcel.task_ids, parcel.tasks, strict=True):
            if not self.pending.waits(sink, task_id):
                self.pending.add(task_id, 0, sink, task)
                new.append(task_id)
        self._sender.outgoing.put(parcel)
        try:
            await self._receipt(parcel)
        except BaseException:
            self.pending.forget(new)
            raise
        return parcel.task_ids

    def leave(self, sink: Sink) -> list[tuple[str, int]]:
        """Nobody waits for the sink's tasks any more: they are forgotten here and cancelled there."""
        left = self.pending.leave(sink)
        if left:
            self._sender.give_up(task_id for task_id, _ in left)
        return left

    async def call(self, method: Callable[..., Awaitable[T]], request: Any, seconds: float | None = None) -> T:
        """One unary call, repeated while the scheduler is away."""
        self.check()

        async def once(left: float) -> T:
            return await method(request, timeout=left)

        limit = self._config.call_seconds if seconds is None else seconds
        return await retried(once, what="the scheduler", address=self._address, seconds=limit, rng=self._rng)

    def fail(self, error: FleetError) -> None:
        """Ends the link for a reason known elsewhere."""
        self._end(error)
        if self._keeper is not None:
            self._keeper.cancel()

    async def _keep(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._sender.start(group)
                self._searcher.start(group)
                await self._exchange.run(group)
        except BaseExceptionGroup as errors:
            known = fleet_error_in(errors)
            if known is None:
                log.exception("client_failed", errors)
                known = FleetError(f"the client failed: {errors.exceptions[0]!r}", reason="CLIENT_FAILED")
            if known.reason == "UNIMPLEMENTED":
                known = Unavailable(f"what answers at {self._address} is no scheduler, or one of another version")
            self._end(known)

    def _connected(self, terms: pb.StreamTerms) -> None:
        self._first_connection.set()
        # A server that does not name its memory may have lost it.
        lost = not terms.memory_id or terms.memory_id != self._sender.memory_id
        self._sender.connections += 1
        self._sender.limit(terms.message_bytes)
        self._sender.memory_id, self._sender.remembers_seconds = terms.memory_id, terms.remembers.ToNanoseconds() / 1e9
        # What has no answer yet is sent again by the sender, and searched for once it is accepted.
        unanswered = self._sender.unanswered()
        accepted = [task_id for task_id in self.pending if task_id not in unanswered]
        self._searcher.search_anew(accepted, lost=lost)

    def _end(self, error: FleetError) -> None:
        if self._error is None:
            self._error = error
            self._sender.outgoing.refuse_all(error)
            self.pending.close(error)
            self._first_connection.set()

    def _search(self, task_ids: Sequence[str]) -> None:
        self._searcher.search(task_ids)

    def _encoded(self, request: TaskRequest) -> tuple[str, bytes]:
        if not isinstance(request, TaskRequest):
            raise InvalidInput(f"a task must be a TaskRequest, got {request!r:.100}", reason="INVALID_TASK")
        task_id = request.task_id
        if not task_id:
            self._count += 1
            task_id = f"{self._prefix}{self._count}"
        task = self._encoder.task(request, task_id)
        if len(task) > self._sender.outgoing.most_bytes:
            raise InvalidInput(
                f"the task has {len(task)} bytes; a request holds at most {self._sender.outgoing.most_bytes}"
                " (the scheduler's listen.max_message_bytes, or message_bytes of ClientConfig)",
                reason="PAYLOAD_TOO_LARGE",
            )
        return task_id, task

    async def _receipt(self, parcel: Parcel) -> None:
        assert parcel.receipt is not None
        seconds = self._config.call_seconds
        try:
            async with asyncio.timeout(seconds):
                await parcel.receipt
        except TimeoutError:
            # It may be accepted all the same.
            self._sender.give_up(parcel.task_ids)
            raise DeadlineExceeded(
                f"the scheduler at {self._address} accepted no tasks within {seconds:g} s", address=self._address
            ) from None
        except asyncio.CancelledError:
            self._sender.give_up(parcel.task_ids)
            raise

    async def _farewell(self) -> None:
        if self._error is None:
            await self._sender.nothing_given_up()
        if self._farewells:
            await asyncio.wait(self._farewells)

    def _cancel_later(self, task_ids: Sequence[str]) -> None:
        if self._error is None:
            task = asyncio.create_task(self._cancel(task_ids), name="parlmesh client cancels")
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    async def _cancel(self, task_ids: Sequence[str]) -> None:
        try:
            for start in range(0, len(task_ids), TASKS_PER_REQUEST):
                request = pb.CancelTasksRequest(task_ids=task_ids[start : start + TASKS_PER_REQUEST])
                await self.call(self.stub.CancelTasks, request)
        except FleetError as error:
            log.warning("cancel_failed", tasks=len(task_ids), reason=error.reason, message=error.message)


def _mark(parcel: Parcel, request: TaskRequest) -> None:
    if request.task_id:
        parcel.chosen_ids.append(request.task_id)
    if request.dependencies:
        parcel.ordered = True


def _id_of(request: object) -> str:
    return request.task_id if isinstance(request, TaskRequest) else ""


def _check_size(parcel: Parcel, limit_bytes: int) -> None:
    if len(parcel.tasks) > TASKS_PER_REQUEST:
        raise InvalidInput(
            f"{len(parcel.tasks)} tasks are given at once; the limit is {TASKS_PER_REQUEST}"
            " (execute_parallel, as_completed and map take any number)",
            reason="TOO_MANY_TASKS",
        )
    if parcel.size > limit_bytes:
        raise InvalidInput(
            f"the tasks have {parcel.size} bytes; a request holds at most {limit_bytes}"
            " (the scheduler's listen.max_message_bytes, or message_bytes of ClientConfig)",
            reason="PAYLOAD_TOO_LARGE",
        )
