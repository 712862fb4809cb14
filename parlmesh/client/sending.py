"""Carries tasks to the scheduler: a few requests at a time, each with everything that is ready."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Sequence

import grpc.aio

from parlmesh.errors import FleetError
from parlmesh.rpc import Backoff
from parlmesh.telemetry import get_logger

from .config import ClientConfig
from .outcomes import refused
from .outgoing import Outgoing, Parcel, halves, wanted
from .pending import Pending
from .retrying import passes, pause_after
from .submissions import Submissions

log = get_logger("parlmesh.client")

# Of a message, for what surrounds the tasks.
_RESERVE_BYTES = 16 << 10


class Sender:
    """Sends what is in `outgoing`. Safe to repeat, because every task carries its id."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        pending: Pending,
        config: ClientConfig,
        rng: random.Random,
        *,
        search: Callable[[Sequence[str]], None],
        cancel: Callable[[Sequence[str]], None],
    ) -> None:
        self._submissions = Submissions(channel)
        self._pending = pending
        self._config = config
        self._rng = rng
        self._search = search
        self._cancel = cancel
        self._under_way: list[Sequence[Parcel]] = []
        self._given_up: set[str] = set()
        self._nothing_given_up = asyncio.Event()
        self._nothing_given_up.set()
        self.outgoing = Outgoing(most_tasks=config.tasks_per_request, most_bytes=config.message_bytes - _RESERVE_BYTES)
        self.connections = 0
        """Raised by one whenever outcomes may have been missed."""
        self.submitted = 0
        self.refused = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Sends until cancelled."""
        self._submissions.start(group)
        for _ in range(self._config.requests_in_flight):
            group.create_task(self._send())

    def unanswered(self) -> set[str]:
        """Ids of tasks that the scheduler has not yet accepted or refused."""
        return _ids(itertools.chain(self.outgoing.parcels, *self._under_way))

    def give_up(self, task_ids: Iterable[str]) -> None:
        """Cancels tasks that nobody waits for: at once, or as soon as the request that carries them is answered."""
        unsent = self.outgoing.prune(self._pending)
        under_way = _ids(itertools.chain(*self._under_way))
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

    async def _send(self) -> None:
        outgoing = self.outgoing
        while True:
            parcels = outgoing.take(others_in_flight=bool(self._under_way))
            if not parcels:
                await outgoing.ready.wait()
                continue
            self._under_way.append(parcels)
            try:
                await self._deliver(parcels)
            finally:
                self._under_way.remove(parcels)
                # A parcel may have waited for these to be accepted.
                outgoing.ready.set()
            if self._given_up:
                self._cancel_given_up(parcels)

    def _cancel_given_up(self, parcels: Sequence[Parcel]) -> None:
        sent = [task_id for parcel in parcels for task_id in parcel.task_ids if task_id in self._given_up]
        self._given_up.difference_update(sent)
        if sent:
            self._cancel(sent)
        if not self._given_up:
            self._nothing_given_up.set()

    async def _deliver(self, parcels: Sequence[Parcel]) -> None:
        """Until every task is accepted or refused. A request is refused whole, so the culprit is found by halving."""
        connections = self.connections
        refusal, parcels = await self._answer(parcels)
        if refusal is None:
            for parcel in parcels:
                self._accepted(parcel, missed=connections != self.connections)
            return
        parts = halves(parcels)
        if parts is None:
            self._refuse(parcels[0], refusal)
            return
        for part in parts:
            await self._deliver(part)

    async def _answer(self, parcels: Sequence[Parcel]) -> tuple[FleetError | None, Sequence[Parcel]]:
        """Sends one request until it is answered: the refusal if it was refused, and what was sent at last."""
        backoff = Backoff(first=0.05, limit=self._config.reconnect_seconds, rng=self._rng)
        while parcels:
            try:
                tasks = b"".join(task for parcel in parcels for task in parcel.tasks)
                await self._submissions.submit(tasks, self._config.call_seconds)
                break
            except FleetError as refusal:
                error = refusal
            if not passes(error):
                return error, parcels
            pause = pause_after(error, backoff)
            log.info("submit_waits", reason=error.reason, message=error.message, retry_seconds=round(pause, 3))
            await asyncio.sleep(pause)
            # Those who gave up want nothing to run. All who wait have deadlines, so this ends.
            parcels = wanted(parcels, self._pending)
        return None, parcels

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


def _ids(parcels: Iterable[Parcel]) -> set[str]:
    return {task_id for parcel in parcels for task_id in parcel.task_ids}
