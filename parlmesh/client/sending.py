"""Carries tasks to the scheduler: a few requests at a time, each with everything that is ready."""

import asyncio
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
        on_accepted: Callable[[Sequence[str]], None],
    ) -> None:
        # Requests are encoded by hand and the answer only repeats the ids: both stay bytes.
        self._submit: Callable[..., Any] = channel.unary_unary(SUBMIT)
        self._pending = pending
        self._config = config
        self._rng = rng
        self._on_accepted = on_accepted
        self._in_flight = 0
        self.outgoing = Outgoing(most_tasks=config.tasks_per_request, most_bytes=config.message_bytes - _RESERVE_BYTES)
        self.submitted = 0
        self.refused = 0

    def start(self, group: asyncio.TaskGroup) -> None:
        """Sends until cancelled."""
        for _ in range(self._config.requests_in_flight):
            group.create_task(self._send())

    async def _send(self) -> None:
        outgoing = self.outgoing
        while True:
            parcels = outgoing.take(others_in_flight=self._in_flight > 0)
            if not parcels:
                await outgoing.ready.wait()
                continue
            self._in_flight += 1
            try:
                await self._deliver(parcels)
            finally:
                self._in_flight -= 1
                # A parcel may have waited for these to be accepted.
                outgoing.ready.set()

    async def _deliver(self, parcels: Sequence[Parcel]) -> None:
        """Until every task is accepted or refused. A request is refused whole, so the culprit is found by halving."""
        error = await self._try(parcels)
        if error is None:
            for parcel in parcels:
                self._accepted(parcel)
            return
        parts = halves(parcels)
        if parts is None:
            self._refuse(parcels[0], error)
            return
        for part in parts:
            await self._deliver(part)

    async def _try(self, parcels: Sequence[Parcel]) -> FleetError | None:
        """Sends one request until it is answered; the refusal when it was refused."""
        backoff = Backoff(first=0.05, limit=self._config.reconnect_seconds, rng=self._rng)
        while True:
            tasks = [task for parcel in parcels for task in parcel.tasks]
            try:
                await self._submit(b"".join(tasks), timeout=self._config.call_seconds)
                return None
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
            if not passes(error):
                return error
            pause = pause_after(error, backoff)
            log.info("submit_waits", tasks=len(tasks), reason=error.reason, retry_seconds=round(pause, 3))
            await asyncio.sleep(pause)
            if not any(self._wanted(parcel) for parcel in parcels):
                return None

    def _wanted(self, parcel: Parcel) -> bool:
        """Whether anyone still waits for any of it; those who wait have deadlines, so this ends."""
        if parcel.receipt is not None:
            return not parcel.unwanted
        return any(task_id in self._pending for task_id in parcel.task_ids)

    def _accepted(self, parcel: Parcel) -> None:
        self.submitted += len(parcel.tasks)
        parcel.accept()
        if parcel.chosen_ids:
            self._on_accepted(parcel.chosen_ids)

    def _refuse(self, parcel: Parcel, error: FleetError) -> None:
        self.refused += len(parcel.tasks)
        if parcel.receipt is not None:
            parcel.refuse(error)
        else:
            for task_id in parcel.task_ids:
                self._pending.settle(refused(task_id, 0, error))
