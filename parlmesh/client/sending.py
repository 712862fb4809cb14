"""Carries tasks to the scheduler: a few requests at a time, each with everything that is ready."""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

from parlmesh.errors import FleetError
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger

from .config import ClientConfig
from .outcomes import refused
from .outgoing import Outgoing, Parcel, halves
from .pending import Pending
from .retrying import passes, pause_after

log = get_logger("parlmesh.client")

SUBMIT = "/parlmesh.v1.SchedulerService/SubmitTasks"
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
    ) -> None:
        # Requests are encoded by hand and the answer only repeats the ids: both stay bytes.
        self._submit: Callable[..., Any] = channel.unary_unary(SUBMIT)
        self._pending = pending
        self._config = config
        self._rng = rng
        self._search = search
        self._under_way: list[Sequence[Parcel]] = []
        self.outgoing = Outgoing(most_tasks=config.tasks_per_request, most_bytes=config.message_bytes - _RESERVE_BYTES)
        self.connections = 0
        """Raised by one whenever outcomes may have been missed."""
        self.submitted = 0
        self.refused = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Sends until cancelled."""
        for _ in range(self._config.requests_in_flight):
            group.create_task(self._send())

    def unanswered(self) -> set[str]:
        """Ids of tasks that the scheduler has not yet accepted or refused."""
        parcels = itertools.chain(self.outgoing.parcels, *self._under_way)
        return {task_id for parcel in parcels for task_id in parcel.task_ids}

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
                await self._submit(tasks, timeout=self._config.call_seconds)
                break
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
            if not passes(error):
                return error, parcels
            pause = pause_after(error, backoff)
            log.info("submit_waits", reason=error.reason, message=error.message, retry_seconds=round(pause, 3))
            await asyncio.sleep(pause)
            # Those who gave up meanwhile want nothing to run. All who wait have deadlines, so this ends.
            parcels = [kept for parcel in parcels if (kept := parcel.wanted(self._pending)) is not None]
        return None, parcels

    def _accepted(self, parcel: Parcel, *, missed: bool) -> None:
        self.submitted += len(parcel.tasks)
        parcel.accept()
        wanted = parcel.task_ids if missed else parcel.chosen_ids
        if wanted:
            self._search(wanted)

    def _refuse(self, parcel: Parcel, error: FleetError) -> None:
        self.refused += len(parcel.tasks)
        if parcel.receipt is not None:
            parcel.refuse(error)
        else:
            for task_id in parcel.task_ids:
                self._pending.settle(refused(task_id, 0, error))
