"""A client's connection to the scheduler: opened, kept alive, and closed with a reason for every waiting caller."""

import asyncio
import random
import secrets

import grpc.aio

from parlmesh.blob_transfer import Exchange
from parlmesh.errors import FleetError, Unavailable
from parlmesh.rpc.error_statuses import fleet_error_in
from parlmesh.telemetry import get_logger
from parlmesh.v1.blob_service_pb2_grpc import BlobServiceStub

from ..config import ClientConfig
from ..fleet_info import ClientCounts
from ..large_arrays import Arrays
from .outcome_search import Searcher
from .outgoing_tasks import Outgoing, Submissions
from .pending_outcomes import Pending, Sink
from .request_sender import Sender
from .retry import SchedulerCalls, unreachable
from .scheduler_stream import Stream

log = get_logger("parlmesh.client")

_FAREWELL_SECONDS = 1.0
"""Time the last cancellations have to reach the scheduler when a client closes."""


class Connection:
    """Works from `open` to `close`; everything runs on the loop that opened it."""

    def __init__(self, channel: grpc.aio.Channel, address: str, config: ClientConfig) -> None:
        # Ids must not collide with those of another client with the same submitter.
        life = secrets.token_hex(4)
        submitter = config.submitter or f"client-{life}"
        rng = random.Random()  # noqa: S311 - spreads retries
        self.pending = Pending()
        self.calls = SchedulerCalls(channel, address, config, rng)
        self._channel = channel
        self._address = address
        self._config = config
        self._outgoing = Outgoing(most_tasks=config.tasks_per_request, most_bytes=0)
        exchange = Exchange(
            BlobServiceStub(channel),
            address,
            cache_bytes=config.blob_bytes,
            call_seconds=config.blob_seconds,
            keeps_results=False,
        )
        self.arrays = self.pending.arrays = Arrays(exchange, self.calls.insist)
        self._searcher = Searcher(self.calls.stub, self.pending, self._outgoing, config, rng)
        self._sender = Sender(self.pending, self._outgoing, self._searcher, self.calls, config, rng)
        self.submissions = Submissions(
            submitter,
            f"{config.submitter or 'client'}-{life}-",
            self.pending,
            self._outgoing,
            self.calls,
            seconds=config.call_seconds,
            give_up=self._sender.give_up,
        )
        self._stream = Stream(
            channel,
            submitter,
            self.pending,
            config,
            rng,
            requests=self._sender,
            on_terms=lambda terms: exchange.agree(terms.blobs),
        )
        self._keeper: asyncio.Task[None] | None = None

    @property
    def counts(self) -> ClientCounts:
        """What this client has done so far."""
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
        """Returns when outcomes can arrive; Unavailable if no scheduler answers in time."""
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
        """Ends every wait; tasks that were accepted continue without this client."""
        cancelled = asyncio.create_task(self._all_cancelled(), name="parlmesh client takes leave")
        try:
            # No asyncio.timeout: before 3.11.3 it misbehaves in a task that is being cancelled.
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
                group.create_task(self.arrays.renew())
                await self._stream.run(group)
        except BaseExceptionGroup as errors:
            known = fleet_error_in(errors)
            if known is None:
                log.exception("client_failed", errors)
                known = FleetError(f"the client failed: {errors.exceptions[0]!r}", reason="CLIENT_FAILED")
            if known.reason == "UNIMPLEMENTED":
                known = Unavailable(f"the server at {self._address} is not a scheduler, or one of another version")
            self._end(known)

    def fail(self, error: FleetError) -> None:
        """Ends the connection for a reason known elsewhere."""
        self._end(error)
        if self._keeper is not None:
            self._keeper.cancel()

    def leave(self, sink: Sink) -> list[tuple[str, int]]:
        """Forgets the sink's tasks and cancels them at the scheduler, because no caller waits for them any longer."""
        left = self.pending.leave(sink)
        if left:
            self._sender.give_up(task_id for task_id, _ in left)
        return left

    def _end(self, error: FleetError) -> None:
        if self.calls.error is None:
            self.calls.error = error
            self._outgoing.refuse_all(error)
            self.submissions.end(error)
            self.pending.close(error)
            self._stream.first_connection.set()

    async def _all_cancelled(self) -> None:
        if self.calls.error is None:
            await self._sender.all_cancelled()
            await self.arrays.close()
