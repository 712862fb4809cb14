"""Decides what to send to the scheduler and when: a few requests at a time, each with everything that is ready."""

import asyncio
import itertools
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from parlmesh.errors import FleetError, NotFound, ResourceExhausted
from parlmesh.rpc import UNTOLD_MESSAGE_BYTES, Backoff
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb

from ..config import ClientConfig
from ..outcomes import OUTCOME_FORGOTTEN, forgotten, refused
from .outcome_search import Searcher
from .outgoing_tasks import Outgoing
from .pending_outcomes import Pending
from .retry import SchedulerCalls, is_temporary, pause_after
from .scheduler_stream import Request
from .task_parcels import Parcel, halves, wanted

log = get_logger("parlmesh.client")

# Bytes of a message that surround the tasks.
_RESERVE_BYTES = 16 << 10
# SubmitTaskStreamRequest.patient: the receipt may travel with the next outcomes.
_PATIENT = b"\x18\x01"

_MAY_HAVE_RUN = (
    "the request got no answer before the connection broke, and the scheduler no longer keeps outcomes of that time: "
    "its tasks may have run, and are not sent again"
)

Parcels = Sequence[Parcel]


class _Sent(NamedTuple):
    """When a request went out, and to whom."""

    connections: int
    memory_id: int
    time: float


class Sender:
    """Makes requests of the tasks in `outgoing` and handles answers. Safe to repeat: every task carries its id."""

    def __init__(
        self,
        pending: Pending,
        outgoing: Outgoing,
        searcher: Searcher,
        calls: SchedulerCalls,
        config: ClientConfig,
        rng: random.Random,
    ) -> None:
        self._pending = pending
        self._outgoing = outgoing
        self._searcher = searcher
        self._calls = calls
        self._config = config
        self._rng = rng
        self._group: asyncio.TaskGroup | None = None
        # By identity, until every task in them is accepted or refused.
        self._under_way: dict[int, Parcels] = {}
        # Tasks of divided requests that were accepted while another part of their request still waits.
        self._taken: set[str] = set()
        self._repeated: list[tuple[Request, _Sent | None]] = []
        self._given_up: set[str] = set()
        self._nothing_given_up = asyncio.Event()
        self._nothing_given_up.set()
        self._cancellations: set[asyncio.Task[None]] = set()
        self._limit(0)
        # Raised by one whenever outcomes may have been missed.
        self._connections = 0
        # The instance of the connected scheduler: a different one has forgotten all tasks.
        self._memory_id = 0
        # The scheduler still knows tasks that ended within this time.
        self._remembers_seconds = 0.0
        self.ready = outgoing.ready
        self.submitted = 0
        self.refused = 0
        self.forgotten = 0

    def _limit(self, server_bytes: int) -> None:
        """Sets how many bytes a request may have, from what the server says; 0 = it does not say."""
        most = min(self._config.message_bytes, server_bytes or UNTOLD_MESSAGE_BYTES)
        self._outgoing.most_bytes = max(most - _RESERVE_BYTES, most // 2)
        if self._pending.arrays is not None:
            self._pending.arrays.exchange.blobs.message_bytes = self._outgoing.most_bytes

    def start(self, group: asyncio.TaskGroup) -> None:
        """Requests that are sent again run in the group."""
        self._group = group

    def connected(self, terms: pb.StreamTerms) -> None:
        """A stream is open: accepted tasks are searched for, and unanswered requests are sent again."""
        # A server that does not name its memory may have lost it.
        lost = not terms.memory_id or terms.memory_id != self._memory_id
        self._connections += 1
        self._limit(terms.message_bytes)
        self._memory_id, self._remembers_seconds = terms.memory_id, terms.remembers.ToNanoseconds() / 1e9
        unanswered = _ids(self._outgoing.parcels) | self._awaiting()
        self._searcher.search_anew([name for name in self._pending if name not in unanswered], lost=lost)

    def next_request(self) -> Request | None:
        """The next request to send; None until `ready` is set again."""
        while self._repeated:
            request, sent = self._repeated.pop(0)
            if sent is None or not self._may_have_run(sent):
                return request
            request.answer(NotFound(_MAY_HAVE_RUN, reason=OUTCOME_FORGOTTEN))
        if len(self._under_way) >= self._config.requests_in_flight:
            return None
        parcels = self._outgoing.take(others_in_flight=bool(self._under_way))
        if not parcels:
            return None
        # A second request must not wait for the receipt of the first longer than it takes.
        patient = not self._under_way and all(parcel.receipt is None for parcel in parcels)
        self._under_way[id(parcels)] = parcels
        if self._taken:
            # A task that is sent again is unanswered again.
            self._taken -= _ids(parcels)
        return Request(
            _joined(parcels) + _PATIENT if patient else _joined(parcels), partial(self._answered, parcels, self._sent())
        )

    def give_up(self, task_ids: Iterable[str]) -> None:
        """Cancels tasks whose callers gave up: immediately, or as soon as the request that carries them is answered."""
        unsent = self._outgoing.prune(self._pending)
        under_way = self._awaiting()
        accepted = []
        for task_id in task_ids:
            if task_id in under_way:
                self._given_up.add(task_id)
                self._nothing_given_up.clear()
            elif task_id not in unsent:
                accepted.append(task_id)
        if accepted:
            self._cancel(accepted)

    def _awaiting(self) -> set[str]:
        return _ids(itertools.chain(*self._under_way.values())) - self._taken

    async def all_cancelled(self) -> None:
        """Waits until all tasks whose callers gave up are cancelled."""
        await self._nothing_given_up.wait()
        if self._cancellations:
            await asyncio.wait(self._cancellations)

    def _cancel(self, task_ids: Sequence[str]) -> None:
        if self._calls.error is not None:
            return
        task = asyncio.create_task(self._calls.cancel(task_ids), name="parlmesh client cancels")
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)

    def _sent(self) -> "_Sent":
        return _Sent(self._connections, self._memory_id, asyncio.get_running_loop().time())

    def _may_have_run(self, sent: "_Sent") -> bool:
        """Whether a request that got no answer may have run, with its outcome already forgotten."""
        age = asyncio.get_running_loop().time() - sent.time
        return bool(self._memory_id) and sent.memory_id == self._memory_id and age >= self._remembers_seconds

    def _answered(self, parcels: Parcels, sent: "_Sent", error: FleetError | None) -> None:
        if error is not None:
            assert self._group is not None
            self._group.create_task(self._insist(parcels, sent, error))
            return
        for parcel in parcels:
            self._accepted(parcel, missed=sent.connections != self._connections)
        self._ended(parcels)

    async def _insist(self, parcels: Parcels, sent: "_Sent", error: FleetError) -> None:
        try:
            await self._deliver(parcels, sent, error)
        finally:
            self._ended(parcels)

    def _ended(self, parcels: Parcels) -> None:
        del self._under_way[id(parcels)]
        if self._taken:
            self._taken -= _ids(parcels)
        if self._outgoing.parcels:
            # The other parcels may have waited for these.
            self._outgoing.ready.set()
        if self._given_up:
            self._cancel_given_up(parcels)

    def _cancel_given_up(self, parcels: Parcels) -> None:
        sent = [task_id for parcel in parcels for task_id in parcel.task_ids if task_id in self._given_up]
        self._given_up.difference_update(sent)
        if sent:
            self._cancel(sent)
        if not self._given_up:
            self._nothing_given_up.set()

    async def _deliver(self, parcels: Parcels, sent: "_Sent", error: FleetError | None = None) -> None:
        """Sends until every task is accepted or refused. A request is refused whole, so the culprit is found by
        halving.

        `error` is the previous answer, `sent` the first try.
        """
        refusal, parcels = await self._settled(parcels, sent, error)
        if refusal is None:
            self._taken |= _ids(parcels)
            for parcel in parcels:
                self._accepted(parcel, missed=sent.connections != self._connections)
            return
        if refusal.reason == OUTCOME_FORGOTTEN:
            for parcel in parcels:
                self._forget(parcel, refusal)
            return
        parts = halves(parcels)
        if parts is None:
            self._refuse(parcels[0], refusal)
            return
        for part in parts:
            await self._deliver(part, sent)

    async def _settled(
        self, parcels: Parcels, first: "_Sent", error: FleetError | None
    ) -> tuple[FleetError | None, Parcels]:
        """Sends one request until it is answered: the refusal, if any, and the parcels that were sent last."""
        backoff = Backoff(first=0.05, limit=self._config.reconnect_seconds, rng=self._rng)
        unanswered: _Sent | None = first if error is not None else None
        while parcels:
            if error is None:
                sent = self._sent()
                error = await self._repeat(parcels, unanswered)
                unanswered = unanswered or sent
            if error is None or not is_temporary(error):
                return error, parcels
            if isinstance(error, ResourceExhausted):
                unanswered = None  # it was refused, so it did not run
            pause = pause_after(error, backoff)
            log.info("submit_waits", reason=error.reason, message=error.message, retry_seconds=round(pause, 3))
            await asyncio.sleep(pause)
            # Tasks whose callers gave up are dropped. All other callers have deadlines, so this loop ends.
            parcels, error = wanted(parcels, self._pending), None
        return None, parcels

    async def _repeat(self, parcels: Parcels, unanswered: "_Sent | None") -> FleetError | None:
        answer: asyncio.Future[FleetError | None] = asyncio.get_running_loop().create_future()
        # The caller may have been cancelled.
        request = Request(_joined(parcels), lambda error: None if answer.done() else answer.set_result(error))
        self._repeated.append((request, unanswered))
        self._outgoing.ready.set()
        return await answer

    def _accepted(self, parcel: Parcel, *, missed: bool) -> None:
        self.submitted += len(parcel.tasks)
        parcel.accept()
        unsure = parcel.task_ids if missed else parcel.chosen_ids
        if unsure:
            self._searcher.search(unsure)

    def _refuse(self, parcel: Parcel, error: FleetError) -> None:
        self.refused += len(parcel.tasks)
        if parcel.receipt is not None:
            parcel.refuse(error)
        else:
            for task_id in parcel.task_ids:
                self._pending.settle(refused(task_id, 0, error))

    def _forget(self, parcel: Parcel, error: FleetError) -> None:
        self.forgotten += len(parcel.tasks)
        if parcel.receipt is not None:
            parcel.refuse(error)
        else:
            for task_id in parcel.task_ids:
                self._pending.settle(forgotten(task_id, 0, error))


def _joined(parcels: Parcels) -> bytes:
    return b"".join([task for parcel in parcels for task in parcel.tasks])


def _ids(parcels: Iterable[Parcel]) -> set[str]:
    return {task_id for parcel in parcels for task_id in parcel.task_ids}
