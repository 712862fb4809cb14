"""ExperienceService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from google.rpc import status_pb2  # type: ignore[import-untyped]

from parlmesh.errors import FleetError, Unavailable
from parlmesh.rpc import caller, message_limit_metadata, status_from_error
from parlmesh.rpc.server import metered, opens_by_itself
from parlmesh.security import Role
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceServicer
from parlmesh.wire import ReceivedTrajectory, TensorLimits, trajectory_from_proto, trajectory_from_request

from ..runs.runs import Runs
from ..runs.training_loop import TrainingRun
from .server_stop import unless

# Receipts that may wait to be written before reading pauses.
_WAITING_RECEIPTS = 64

Context = grpc.aio.ServicerContext[Any, Any]


class ExperienceServicer(ExperienceServiceServicer):
    """ExperienceService."""

    def __init__(self, runs: Runs, max_bytes: int, stopping: asyncio.Event, *, message_bytes: int) -> None:
        self._runs = runs
        self._message_bytes = message_bytes
        self._stopping = stopping
        self._limits = TensorLimits(max_bytes=max_bytes)

    @opens_by_itself
    async def UploadTrajectories(  # type: ignore[override]
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> None:
        # Sent at once, because the first trajectory may not fit.
        await context.send_initial_metadata(message_limit_metadata(self._message_bytes))
        receipts, who = Receipts(), caller()
        node_id = who.name if who.role is Role.ACTOR else ""
        async with asyncio.TaskGroup() as group:
            # A separate task, so that the next trajectory is read while a receipt is on its way.
            reading = group.create_task(self._read(request_iterator, receipts, node_id))
            async for receipt in receipts:
                await context.write(receipt)
        end = reading.result()
        if end is not None:
            raise end

    async def _read(self, requests: AsyncIterator[bytes], receipts: "Receipts", node_id: str) -> Unavailable | None:
        """Reads until the stream ends; returns the error to raise after the last receipt if the learner ended it."""
        end = None
        try:
            await unless(self._stopping, metered(self._take(requests, receipts, node_id)))
        except Unavailable as stopping:
            end = stopping
        await receipts.end()
        return end

    async def _take(self, requests: AsyncIterator[bytes], receipts: "Receipts", node_id: str) -> None:
        async for encoded in requests:
            request = trajectory_from_request(encoded)
            run = self._runs.training(request.message.run_id)
            receipt = pb.UploadTrajectoriesResponse(sequence=request.message.sequence, status=status_pb2.Status())
            try:
                self._admit(run, request, node_id)
            except FleetError as error:
                receipt.status.CopyFrom(status_from_error(error))
            if run is not None:
                receipt.policy_version, receipt.credits = run.progress.version, run.queue.room
            await receipts.put(receipt, together=request.receipts_together)

    def _admit(self, run: TrainingRun | None, request: ReceivedTrajectory, node_id: str) -> None:
        message = request.message
        try:
            trajectory = trajectory_from_proto(message, self._limits, node_id, request.columns)
        except FleetError as error:
            self._runs.refuse(run, error, node_id or message.actor_id)
            raise
        if run is None:
            self._runs.refuse_stray(message.run_id)
        run.receive(trajectory)


class Receipts:
    """Receipts between reading and writing: in order, bounded, and good ones joined if the sender supports that."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[pb.UploadTrajectoriesResponse, bool] | None] = asyncio.Queue(
            _WAITING_RECEIPTS
        )

    async def put(self, receipt: pb.UploadTrajectoriesResponse, *, together: bool) -> None:
        """Adds a receipt; waits while too many are unwritten."""
        await self._waiting.put((receipt, together))

    async def end(self) -> None:
        """Marks the end: no more receipts will come."""
        await self._waiting.put(None)

    async def __aiter__(self) -> AsyncIterator[pb.UploadTrajectoriesResponse]:
        held: pb.UploadTrajectoriesResponse | None = None
        while (item := await self._waiting.get()) is not None:
            receipt, together = item
            if held is not None:
                if together and not held.status.code:
                    receipt.also_accepted.extend((*held.also_accepted, held.sequence))
                else:
                    yield held
            held = receipt
            # Everything there goes together; nothing waits for more.
            if not together or self._waiting.empty():
                yield held
                held = None
        if held is not None:
            yield held
