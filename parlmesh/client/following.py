"""Brings outcomes in: one stream for everything this client submits, and a search for what a break swallowed."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput, NotFound, PermissionDenied, Unauthenticated
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb

from .config import ClientConfig
from .outgoing import Outgoing, Parcel
from .pending import Pending

if TYPE_CHECKING:
    from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceAsyncStub

log = get_logger("parlmesh.client")

_IDS_PER_WATCH = 10_000
_FIRST_PAUSE_SECONDS = 0.05


class Follower:
    """Settles outcomes in `pending` for as long as `run` runs.

    `on_connected` is called whenever a stream is open, and names the tasks whose outcomes may have been missed.
    """

    def __init__(
        self,
        stub: "SchedulerServiceAsyncStub",
        submitter: str,
        pending: Pending,
        outgoing: Outgoing,
        config: ClientConfig,
        rng: random.Random,
        *,
        on_connected: Callable[[], Iterable[str]],
    ) -> None:
        self._stub = stub
        self._submitter = submitter
        self._pending = pending
        self._outgoing = outgoing
        self._config = config
        self._rng = rng
        self._on_connected = on_connected
        self._searches: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self.connections = 0
        self.resubmitted = 0
        self.last_error: FleetError | None = None

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Follows the submitter for ever; an error that no reconnection cures ends it."""
        self._group = group
        backoff = self._backoff()
        while True:
            try:
                await self._follow_submitter(backoff)
            except grpc.aio.AioRpcError as rpc_error:
                self.last_error = error_from_rpc(rpc_error)
            except DeadlineExceeded as error:
                self.last_error = error
            if self.last_error is not None and _is_final(self.last_error):
                raise self.last_error
            pause = backoff.next()
            log.info(
                "disconnected",
                reason=self.last_error.reason if self.last_error else "ENDED",
                pending_tasks=len(self._pending),
                retry_seconds=round(pause, 3),
            )
            await asyncio.sleep(pause)

    def search(self, task_ids: Iterable[str]) -> None:
        """Asks for these by id: they may have ended unseen, or belong to another submitter."""
        assert self._group is not None
        wanted = list(task_ids)
        for start in range(0, len(wanted), _IDS_PER_WATCH):
            task = self._group.create_task(self._search(wanted[start : start + _IDS_PER_WATCH]))
            self._searches.add(task)
            task.add_done_callback(self._searches.discard)

    async def _follow_submitter(self, backoff: Backoff) -> None:
        # No deadline: the stream lives as long as the client; keepalive notices a peer that is gone.
        call = self._stub.WatchTasks(pb.WatchTasksRequest(submitter=self._submitter))
        try:
            await self._opened(call)
            self.connections += 1
            self._search_anew(self._on_connected())
            while isinstance(response := await call.read(), pb.WatchTasksResponse):
                backoff.reset()
                self._pending.take(response.outcomes)
        finally:
            call.cancel()

    async def _opened(self, call: "grpc.aio.UnaryStreamCall[pb.WatchTasksRequest, pb.WatchTasksResponse]") -> None:
        """The scheduler's metadata say that from here on no outcome is missed."""
        seconds = self._config.connect_seconds
        try:
            async with asyncio.timeout(seconds):
                await call.initial_metadata()
        except TimeoutError:
            raise DeadlineExceeded(f"the scheduler opened no stream within {seconds:g} s") from None
        if call.done():
            await call.read()  # raises what the call ended with

    def _search_anew(self, task_ids: Iterable[str]) -> None:
        for task in self._searches:
            task.cancel()
        self.search(task_ids)

    async def _search(self, task_ids: Sequence[str]) -> None:
        """Until every id is settled or sent again."""
        backoff = self._backoff()
        while wanted := [task_id for task_id in task_ids if task_id in self._pending]:
            try:
                async for response in self._stub.WatchTasks(pb.WatchTasksRequest(task_ids=wanted)):
                    self._pending.take(response.outcomes)
            except grpc.aio.AioRpcError as rpc_error:
                if isinstance(error_from_rpc(rpc_error), NotFound):
                    self._resubmit(wanted)
                    return
            await asyncio.sleep(backoff.next())

    def _resubmit(self, task_ids: Iterable[str]) -> None:
        """Sends tasks again to a scheduler that does not know them all; once accepted they are searched again."""
        parcel = Parcel(ordered=True)
        for task_id in task_ids:
            if task_id not in self._pending:
                continue
            parcel = self._outgoing.pack(parcel, task_id, self._pending.encoded(task_id))
            parcel.chosen_ids.append(task_id)
            self.resubmitted += 1
        if parcel.tasks:
            log.warning("tasks_resubmitted", tasks=self.resubmitted)
            self._outgoing.put(parcel)

    def _backoff(self) -> Backoff:
        return Backoff(first=_FIRST_PAUSE_SECONDS, limit=self._config.reconnect_seconds, rng=self._rng)


def _is_final(error: FleetError) -> bool:
    return isinstance(error, (Unauthenticated, PermissionDenied, InvalidInput)) or error.reason == "UNIMPLEMENTED"
