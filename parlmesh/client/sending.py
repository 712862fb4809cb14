"""What is sent to the scheduler and when: a few requests at a time, each with everything that is ready."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from parlmesh.errors import FleetError
from parlmesh.rpc import Backoff
from parlmesh.telemetry import get_logger

from .config import ClientConfig
from .exchange import Request
from .outcomes import refused
from .outgoing import Outgoing, Parcel, halves, wanted
from .pending import Pending
from .retrying import passes, pause_after

log = get_logger("parlmesh.client")

# Of a message, for what surrounds the tasks.
_RESERVE_BYTES = 16 << 10
# SubmitTaskStreamRequest.patient: the receipt may travel with the next outcomes.
_PATIENT = b"\x18\x01"

Parcels = Sequence[Parcel]


class Sender:
    """Makes requests of what is in `outgoing` and takes their answers. Safe to repeat: every task carries its id."""

    def __init__(
        self,
        pending: Pending,
        config: ClientConfig,
        rng: random.Random,
        *,
        search: Callable[[Sequence[str]], None],
        cancel: Callable[[Sequence[str]], None],
    ) -> None:
        self._pending = pending
        self._config = config
        self._rng = rng
        self._search = search
        self._cancel = cancel
        self._group: asyncio.TaskGroup | None = None
        # By identity, until every task in them is accepted or refused.
        self._under_way: dict[int, Parcels] = {}
        self._repeated: list[Request] = []
        self._given_up: set[str] = set()
        self._nothing_given_up = asyncio.Event()
        self._nothing_given_up.set()
        self.outgoing = Outgoing(most_tasks=config.tasks_per_request, most_bytes=config.message_bytes - _RESERVE_BYTES)
        self.connections = 0
        """Raised by one whenever outcomes may have been missed."""
        self.submitted = 0
        self.refused = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """What is sent again belongs to the group."""
        self._group = group

    def next_request(self) -> Request | None:
        """What is to be sent now; None until `outgoing` is ready."""
        if self._repeated:
            return self._repeated.pop(0)
        if len(self._under_way) >= self._config.requests_in_flight:
            return None
        parcels = self.outgoing.take(others_in_flight=bool(self._under_way))
        if not parcels:
            return None
        # A second request must not wait for the receipt of the first longer than it takes.
        patient = not self._under_way and all(parcel.receipt is None for parcel in parcels)
        self._under_way[id(parcels)] = parcels
        return Request(_joined(parcels) + _PATIENT if patient else _joined(parcels), self._answer_to(parcels))

    def unanswered(self) -> set[str]:
        """Ids of tasks that the scheduler has not yet accepted or refused."""
        return _ids(itertools.chain(self.outgoing.parcels, *self._under_way.values()))

    def give_up(self, task_ids: Iterable[str]) -> None:
        """Cancels tasks that nobody waits for: at once, or as soon as the request that carries them is answered."""
        unsent = self.outgoing.prune(self._pending)
        under_way = _ids(itertools.chain(*self._under_way.values()))
        accepted = []
        for task_id in task_ids:
            if task_id in under_way:
                self._given_up.add(task_id)
                self._nothing_given_up.clear()
            elif task_id not in unsent:
                accepted.append(task_id)
        if accepted:
            self._cancel(accepted)

    async def nothing_given_up(self) -> None:
        """Waits until no request is under way that carries tasks to be cancelled."""
        await self._nothing_given_up.wait()

    def _answer_to(self, parcels: Parcels) -> Callable[[FleetError | None], None]:
        return partial(self._answered, parcels, self.connections)

    def _answered(self, parcels: Parcels, connections: int, error: FleetError | None) -> None:
        if error is not None:
            assert self._group is not None
            self._group.create_task(self._insist(parcels, connections, error))
            return
        for parcel in parcels:
            self._accepted(parcel, missed=connections != self.connections)
        self._ended(parcels)

    async def _insist(self, parcels: Parcels, connections: int, error: FleetError) -> None:
        try:
            await self._deliver(parcels, connections, error)
        finally:
            self._ended(parcels)

    def _ended(self, parcels: Parcels) -> None:
        del self._under_way[id(parcels)]
        if self.outgoing.parcels:
            # They may have waited for these.
            self.outgoing.ready.set()
        if self._given_up:
            self._cancel_given_up(parcels)

    def _cancel_given_up(self, parcels: Parcels) -> None:
        sent = [task_id for parcel in parcels for task_id in parcel.task_ids if task_id in self._given_up]
        self._given_up.difference_update(sent)
        if sent:
            self._cancel(sent)
        if not self._given_up:
            self._nothing_given_up.set()

    async def _deliver(self, parcels: Parcels, connections: int, error: FleetError | None = None) -> None:
        """Until every task is accepted or refused. A request is refused whole, so the culprit is found by halving.

        `error` is what was answered before, `connections` the number at the first try.
        """
        refusal, parcels = await self._settled(parcels, error)
        if refusal is None:
            for parcel in parcels:
                self._accepted(parcel, missed=connections != self.connections)
            return
        parts = halves(parcels)
        if parts is None:
            self._refuse(parcels[0], refusal)
            return
        for part in parts:
            await self._deliver(part, connections)

    async def _settled(self, parcels: Parcels, error: FleetError | None) -> tuple[FleetError | None, Parcels]:
        """Sends one request until it is answered: the refusal if it was refused, and what was sent at last."""
        backoff = Backoff(first=0.05, limit=self._config.reconnect_seconds, rng=self._rng)
        while parcels:
            if error is None:
                error = await self._repeat(parcels)
            if error is None or not passes(error):
                return error, parcels
            pause = pause_after(error, backoff)
            log.info("submit_waits", reason=error.reason, message=error.message, retry_seconds=round(pause, 3))
            await asyncio.sleep(pause)
            # Those who gave up want nothing to run. All who wait have deadlines, so this ends.
            parcels, error = wanted(parcels, self._pending), None
        return None, parcels

    async def _repeat(self, parcels: Parcels) -> FleetError | None:
        answer: asyncio.Future[FleetError | None] = asyncio.get_running_loop().create_future()
        # Whoever waited may have gone.
        self._repeated.append(
            Request(_joined(parcels), lambda error: None if answer.done() else answer.set_result(error))
        )
        self.outgoing.ready.set()
        return await answer

    def _accepted(self, parcel: Parcel, *, missed: bool) -> None:
        self.submitted += len(parcel.tasks)
        parcel.accept()
        unsure = parcel.task_ids if missed else parcel.chosen_ids
        if unsure:
            self._search(unsure)

    def _refuse(self, parcel: Parcel, error: FleetError) -> None:
        self.refused += len(parcel.tasks)
        if parcel.receipt is not None:
            parcel.refuse(error)
        else:
            for task_id in parcel.task_ids:
                self._pending.settle(refused(task_id, 0, error))


def _joined(parcels: Parcels) -> bytes:
    return b"".join([task for parcel in parcels for task in parcel.tasks])


def _ids(parcels: Iterable[Parcel]) -> set[str]:
    return {task_id for parcel in parcels for task_id in parcel.task_ids}
