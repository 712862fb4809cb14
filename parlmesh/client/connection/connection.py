"""A client's line to the scheduler: takes tasks, settles their outcomes, keeps itself connected."""

import asyncio
import itertools
import random
import secrets
from collections.abc import Iterable, Sequence

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput, Unavailable
from parlmesh.rpc.errors import fleet_error_in
from parlmesh.telemetry import get_logger

from ..config import ClientConfig
from ..info import ClientCounts
from ..outcomes import refused
from ..requests import Encoder, TaskRequest
from .parcels import Outgoing, Parcel
from .pending import Pending, Sink
from .resync import Searcher
from .retry import TASKS_PER_REQUEST, SchedulerCalls, unreachable
from .sender import Sender
from .stream import Stream

log = get_logger("parlmesh.client")

_FAREWELL_SECONDS = 1.0
"""Time the last cancellations have to reach the scheduler when a client closes."""


class Connection:
    """Works from `open` to `close`; everything runs on the loop that opened it."""

    def __init__(self, channel: grpc.aio.Channel, address: str, config: ClientConfig) -> None:
        # Ids must not meet those of another client with the same submitter.
        life = secrets.token_hex(4)
        submitter = config.submitter or f"client-{life}"
        rng = random.Random()  # noqa: S311 - spreads retries
        self.pending = Pending()
        self.calls = SchedulerCalls(channel, address, config, rng)
        self._channel = channel
        self._address = address
        self._config = config
        self._encoder = Encoder(submitter)
        self._prefix = f"{config.submitter or 'client'}-{life}-"
        self._count = itertools.count(1)
        self._outgoing = Outgoing(most_tasks=config.tasks_per_request, most_bytes=0)
        self._searcher = Searcher(self.calls.stub, self.pending, self._outgoing, config, rng)
        self._sender = Sender(self.pending, self._outgoing, self._searcher, self.calls, config, rng)
        self._stream = Stream(channel, submitter, self.pending, config, rng, requests=self._sender)
        self._keeper: asyncio.Task[None] | None = None

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
            reconnects=max(0, self._stream.connections - 1),
            foreign_outcomes=self.pending.foreign,
        )

    async def open(self) -> None:
        """Returns when outcomes can arrive; Unavailable when nobody answers in time."""
        seconds = self._config.connect_seconds
        self._keeper = asyncio.create_task(self._keep(), name="parlmesh client")
        try:
            async with asyncio.timeout(seconds):
                await self._stream.first_connection.wait()
        except TimeoutError:
            cause = self._stream.last_error or Unavailable("no answer")
            await self.close()
            raise unreachable(cause, "the scheduler", self._address, seconds) from None
        except BaseException:
            await self.close()
            raise
        self.calls.check()

    async def close(self) -> None:
        """Ends every wait; tasks that were accepted go on without this client."""
        cancelled = asyncio.create_task(self._all_cancelled(), name="parlmesh client takes leave")
        try:
            # No asyncio.timeout: this may run in a task that is being cancelled, where before 3.11.3 it goes wrong.
            await asyncio.wait({cancelled}, timeout=_FAREWELL_SECONDS)
        finally:
            cancelled.cancel()
            self.fail(Unavailable("the controller was closed", reason="CLOSED"))
            if self._keeper is not None:
                await asyncio.wait({self._keeper})
            await self._channel.close()

    async def _keep(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._sender.start(group)
                self._searcher.start(group)
                await self._stream.run(group)
        except BaseExceptionGroup as errors:
            known = fleet_error_in(errors)
            if known is None:
                log.exception("client_failed", errors)
                known = FleetError(f"the client failed: {errors.exceptions[0]!r}", reason="CLIENT_FAILED")
            if known.reason == "UNIMPLEMENTED":
                known = Unavailable(f"what answers at {self._address} is no scheduler, or one of another version")
            self._end(known)

    def fail(self, error: FleetError) -> None:
        """Ends the connection for a reason known elsewhere."""
        self._end(error)
        if self._keeper is not None:
            self._keeper.cancel()

    def submit_each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Submits tasks that are accepted or refused one by one; the sink gets one outcome for every index."""
        self.calls.check()
        outgoing, parcel = self._outgoing, Parcel()
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
                self._mark(parcel, request)
            self.pending.add(task_id, index, sink, task)
        if parcel.tasks:
            outgoing.put(parcel)

    async def submit_whole(self, requests: Sequence[TaskRequest], sink: Sink) -> list[str]:
        """The ids, once the scheduler has accepted all; an error when it has accepted none."""
        self.calls.check()
        parcel = Parcel(receipt=asyncio.get_running_loop().create_future())
        for request in requests:
            task_id, task = self._encoded(request)
            parcel.add(task_id, task)
            self._mark(parcel, request)
        _check_size(parcel, self._outgoing.most_bytes)
        new = []
        for task_id, task in zip(parcel.task_ids, parcel.tasks, strict=True):
            if not self.pending.waits(sink, task_id):
                self.pending.add(task_id, 0, sink, task)
                new.append(task_id)
        self._outgoing.put(parcel)
        try:
            await self._receipt(parcel)
        except BaseException:
            self.pending.forget(new)
            raise
        return parcel.task_ids

    def new_id(self) -> str:
        """An id that no other task has; from any thread."""
        return f"{self._prefix}{next(self._count)}"

    def leave(self, sink: Sink) -> list[tuple[str, int]]:
        """Nobody waits for the sink's tasks any more: they are forgotten here and cancelled there."""
        left = self.pending.leave(sink)
        if left:
            self._sender.give_up(task_id for task_id, _ in left)
        return left

    def _end(self, error: FleetError) -> None:
        if self.calls.error is None:
            self.calls.error = error
            self._outgoing.refuse_all(error)
            self.pending.close(error)
            self._stream.first_connection.set()

    def _encoded(self, request: TaskRequest) -> tuple[str, bytes]:
        if not isinstance(request, TaskRequest):
            raise InvalidInput(f"a task must be a TaskRequest, got {request!r:.100}", reason="INVALID_TASK")
        task_id = request.task_id or self.new_id()
        task = self._encoder.task(request, task_id)
        if len(task) > self._outgoing.most_bytes:
            raise InvalidInput(
                f"the task has {len(task)} bytes; a request holds at most {self._outgoing.most_bytes}"
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

    def _mark(self, parcel: Parcel, request: TaskRequest) -> None:
        if request.task_id and not request.task_id.startswith(self._prefix):
            parcel.chosen_ids.append(request.task_id)
        if request.dependencies:
            parcel.ordered = True

    async def _all_cancelled(self) -> None:
        if self.calls.error is None:
            await self._sender.all_cancelled()


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
