"""Looks up tasks by id: tasks that may have ended during a break, and tasks that others submitted."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import grpc.aio

from parlmesh.errors import NotFound
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb

from ..config import ClientConfig
from ..outcomes import forgotten
from .outgoing_tasks import Outgoing
from .pending_outcomes import Pending
from .task_parcels import Parcel

if TYPE_CHECKING:
    from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceAsyncStub

log = get_logger("parlmesh.client")

_IDS_PER_WATCH = 10_000
_FIRST_PAUSE_SECONDS = 0.05


class Searcher:
    """Settles the outcomes it finds in `pending`, and resubmits tasks that the scheduler lost with its memory.

    A task that the scheduler accepted but does not know, although its memory is intact, has ended: it is not run again.
    """

    def __init__(
        self,
        stub: "SchedulerServiceAsyncStub",
        pending: Pending,
        outgoing: Outgoing,
        config: ClientConfig,
        rng: random.Random,
    ) -> None:
        self._stub = stub
        self._pending = pending
        self._outgoing = outgoing
        self._config = config
        self._rng = rng
        self._searches: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        # May be resubmitted when unknown: the scheduler that accepted them lost its memory, or gives no id of it.
        self._lost: set[str] = set()
        self.resubmitted = 0
        self.forgotten = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Runs searches in this group."""
        self._group = group

    def search(self, task_ids: Iterable[str]) -> None:
        """Asks for these until each is settled or sent again."""
        assert self._group is not None
        wanted = list(task_ids)
        for start in range(0, len(wanted), _IDS_PER_WATCH):
            task = self._group.create_task(self._search(wanted[start : start + _IDS_PER_WATCH]))
            self._searches.add(task)
            task.add_done_callback(self._searches.discard)

    def search_anew(self, task_ids: Sequence[str], *, lost: bool) -> None:
        """Replaces all earlier searches after a break; `lost`: the scheduler may have lost its memory."""
        for task in self._searches:
            task.cancel()
        self._lost = set(task_ids) if lost else {task_id for task_id in self._lost if task_id in self._pending}
        self.search(task_ids)

    async def _search(self, task_ids: Sequence[str]) -> None:
        backoff = Backoff(first=_FIRST_PAUSE_SECONDS, limit=self._config.reconnect_seconds, rng=self._rng)
        while wanted := [task_id for task_id in task_ids if task_id in self._pending]:
            try:
                request = pb.WatchTasksRequest(task_ids=wanted, skip_unknown=True)
                async for response in self._stub.WatchTasks(request):
                    self._pending.take(response.outcomes)
                    self._not_found(response.unknown_task_ids)
            except grpc.aio.AioRpcError as rpc_error:
                # An older scheduler names only one unknown task.
                if isinstance(error_from_rpc(rpc_error), NotFound):
                    self._resubmit(wanted)
                    return
            await asyncio.sleep(backoff.next())

    def _not_found(self, task_ids: Sequence[str]) -> None:
        lost = [task_id for task_id in task_ids if task_id in self._lost]
        if lost:
            self._resubmit(lost)
            self._lost.difference_update(lost)
        for task_id in task_ids:
            if task_id in self._pending and task_id not in lost:
                self.forgotten += 1
                self._pending.settle(forgotten(task_id, 0))

    def _resubmit(self, task_ids: Iterable[str]) -> None:
        """Sends the tasks again to a scheduler that lacks some; once accepted, they are searched for again."""
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
