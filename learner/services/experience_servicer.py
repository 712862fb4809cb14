"""ExperienceService over gRPC: decode, call, encode."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
from google.rpc import status_pb2  # type: ignore[import-untyped]

from parlmesh.errors import FailedPrecondition, FleetError, ResourceExhausted, Unavailable
from parlmesh.rpc import caller, message_limit_metadata, status_from_error
from parlmesh.rpc.server import message_check, metered, opens_by_itself
from parlmesh.security import Role
from parlmesh.upload_files import MOST_BYTES, UNREADABLE
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceServicer
from parlmesh.wire import ReceivedTrajectory, TensorLimits, TrajectoryReader, field_head

from ..runs.runs import Runs
from ..runs.training_loop import TrainingRun
from .server_stop import unless
from .upload_folder import UploadFiles, UploadFolder, unreadable

# Receipts that may wait to be written before reading pauses.
_WAITING_RECEIPTS = 64
# Good receipts that are written as one, and the longest that the first of them waits for the others.
_MOST_JOINED = 3
_JOIN_SECONDS = 0.005
# Receipts until one more is joined; twice as many after some that waited in vain.
_LEAST_PATIENCE, _MOST_PATIENCE = 16, 256
_OFTEN = 2
_FILE = field_head(pb.UploadTrajectoriesRequest.DESCRIPTOR.fields_by_name["file"].number, 0)[:1]

_SERVICE = pb.DESCRIPTOR.services_by_name["ExperienceService"]
_METHOD = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['UploadTrajectories'].name}"

Context = grpc.aio.ServicerContext[Any, Any]


class ExperienceServicer(ExperienceServiceServicer):
    """ExperienceService."""

    def __init__(
        self, runs: Runs, max_bytes: int, stopping: asyncio.Event, *, message_bytes: int, folder: UploadFolder
    ) -> None:
        """`folder` is where actors on this host may put trajectories."""
        self._runs = runs
        self._folder = folder
        self._message_bytes = message_bytes
        self._stopping = stopping
        self._limits = TensorLimits(max_bytes=max_bytes)

    @opens_by_itself
    async def UploadTrajectories(  # type: ignore[override]
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> None:
        files = self._folder.open()
        try:
            # Sent immediately, because the first trajectory may not fit.
            told = message_limit_metadata(self._message_bytes)
            await context.send_initial_metadata(told if files is None else told + files.metadata)
            receipts, who = Receipts(), caller()
            node_id = who.name if who.role is Role.ACTOR else ""
            async with asyncio.TaskGroup() as group:
                # A separate task, so that the next trajectory is read while a receipt is being written.
                reading = group.create_task(self._read(request_iterator, files, receipts, node_id))
                async for receipt in receipts:
                    await context.write(receipt)
            end = reading.result()
        finally:
            self._folder.close(files)
        if end is not None:
            raise end

    async def _read(
        self, requests: AsyncIterator[bytes], files: UploadFiles | None, receipts: "Receipts", node_id: str
    ) -> Unavailable | None:
        """Reads until the stream ends; returns the error to raise after the last receipt if the learner ended it."""
        end = None
        try:
            await unless(self._stopping, metered(self._take(requests, files, receipts, node_id)))
        except Unavailable as stopping:
            end = stopping
        await receipts.end()
        return end

    async def _take(
        self, requests: AsyncIterator[bytes], files: UploadFiles | None, receipts: "Receipts", node_id: str
    ) -> None:
        reader, check = TrajectoryReader(self._limits), message_check(_METHOD)
        async for encoded in requests:
            if encoded.startswith(_FILE):
                named = pb.UploadTrajectoriesRequest.FromString(encoded).file
                try:
                    encoded = self._read_file(files, named, check)
                except (FailedPrecondition, ResourceExhausted) as error:
                    # Honest actors may meet a file that cannot be read, but name none that is too large.
                    self._runs.refuse(None, error, node_id, strike=error.reason != UNREADABLE)
                    refusal = pb.UploadTrajectoriesResponse(sequence=named.sequence, status=status_from_error(error))
                    await receipts.put(refusal, together=False)
                    continue
            request = reader.request(encoded)
            run = self._runs.training(request.message.run_id)
            receipt = pb.UploadTrajectoriesResponse(sequence=request.message.sequence, status=status_pb2.Status())
            try:
                self._admit(run, reader, request, node_id)
            except FleetError as error:
                receipt.status.CopyFrom(status_from_error(error))
            if run is not None:
                receipt.policy_version, receipt.credits = run.progress.version, run.queue.room
            await receipts.put(receipt, together=request.receipts_together)

    def _read_file(
        self, files: UploadFiles | None, named: pb.UploadFile, check: Callable[[bytes], bytes] | None
    ) -> bytes:
        """A copy, which the actor can no longer change; `check` is the check that a sent message passes."""
        if files is None:
            raise unreadable("no files were offered on this stream")
        limit = min(MOST_BYTES, self._message_bytes)
        if named.size_bytes > limit:
            text = f"file {named.number} has {named.size_bytes} bytes; the limit is {limit}"
            raise ResourceExhausted(text, reason="TOO_LARGE")
        data = os.pread(files.descriptor(named.number), named.size_bytes, 0)
        if check is not None:
            data = check(data)
        if len(data) != named.size_bytes:
            raise unreadable(f"file {named.number} has {len(data)} bytes, not {named.size_bytes}")
        return data

    def _admit(
        self, run: TrainingRun | None, reader: TrajectoryReader, request: ReceivedTrajectory, node_id: str
    ) -> None:
        message = request.message
        try:
            trajectory = reader.trajectory(request, node_id)
        except FleetError as error:
            self._runs.refuse(run, error, node_id or message.actor_id)
            raise
        if run is None:
            self._runs.refuse_stray(message.run_id)
        run.receive(trajectory)


class Receipts:
    """Receipts between reading and writing: in order, bounded, and good ones joined if the sender supports that.

    A sender with many trajectories in flight gets a few receipts as one, because each costs both sides as much as a
    small trajectory. A receipt that waits for the next in vain shows how many are in flight; this is tried seldom, and
    not again soon.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[pb.UploadTrajectoriesResponse, bool]] = deque()
        self._due, self._room = asyncio.Event(), asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        self._joined, self._in_vain = 1, 0
        self._until_more = self._patience = _LEAST_PATIENCE

    async def put(self, receipt: pb.UploadTrajectoriesResponse, *, together: bool) -> None:
        """Adds a receipt; waits while too many are unwritten."""
        while len(self._waiting) >= _WAITING_RECEIPTS:
            self._room.clear()
            await self._room.wait()
        self._waiting.append((receipt, together))
        if not together or receipt.status.code:
            self._due.set()
        elif len(self._waiting) >= self._joined:
            self._in_vain = 0
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_JOIN_SECONDS, self._waited_in_vain)

    async def end(self) -> None:
        """Marks the end: no more receipts will come."""
        self._ended = True
        self._due.set()

    async def __aiter__(self) -> AsyncIterator[pb.UploadTrajectoriesResponse]:
        while not self._ended or self._waiting:
            await self._due.wait()
            self._due.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for receipt in self._take():
                yield receipt

    def _take(self) -> list[pb.UploadTrajectoriesResponse]:
        """All receipts that wait."""
        taken: list[pb.UploadTrajectoriesResponse] = []
        joins = False
        for receipt, together in self._waiting:
            if joins and together:
                held = taken.pop()
                receipt.also_accepted.extend((*held.also_accepted, held.sequence))
            taken.append(receipt)
            joins = together and not receipt.status.code
        self._until_more -= len(self._waiting)
        if self._until_more <= 0:
            if self._joined > 1:
                self._patience = _LEAST_PATIENCE
            self._until_more, self._joined = self._patience, min(_MOST_JOINED, self._joined + 1)
        self._waiting.clear()
        self._room.set()
        return taken

    def _waited_in_vain(self) -> None:
        self._timer = None
        self._in_vain += 1
        # Once may be a pause of either process.
        if self._in_vain == _OFTEN:
            self._in_vain, self._joined = 0, max(1, len(self._waiting) - 1)
            self._until_more = self._patience = min(_MOST_PATIENCE, 2 * self._patience)
        self._due.set()
