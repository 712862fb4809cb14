"""Uploads trajectories to the learner: one long stream, a few in flight, each answered by a receipt.

On the learner's host they are written to files in shared memory, and the stream only names these files.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, ResourceExhausted, Unavailable
from parlmesh.rpc import UNTOLD_MESSAGE_BYTES, Backoff, error_from_status, together, told_message_bytes
from parlmesh.telemetry import get_logger
from parlmesh.upload_files import LEAST_BYTES, MOST_BYTES, UNREADABLE, file_of, told_files
from parlmesh.v1.experience_service_pb2 import (
    DESCRIPTOR,
    UploadFile,
    UploadTrajectoriesRequest,
    UploadTrajectoriesResponse,
)
from parlmesh.wire import EncodedTrajectory

from ..config import LimitsConfig
from ..metrics import ActorMetrics
from ..stream_errors import STREAM_ERRORS, fleet_error_of

log = get_logger("parlmesh.actor")

_Call: TypeAlias = "grpc.aio.StreamStreamCall[bytes, UploadTrajectoriesResponse]"
_METHOD = DESCRIPTOR.services_by_name["ExperienceService"].methods_by_name["UploadTrajectories"]
# The learner's reason for a trajectory it already has; after a broken stream it means that the first one arrived.
DUPLICATE = "DUPLICATE_TRAJECTORY"
OLD_INCARNATION = "OLD_INCARNATION"
ACCEPTED = "accepted"


def upload_stream(channel: grpc.aio.Channel) -> Callable[[], _Call]:
    """Returns a function that opens streams; their requests were serialised in the thread that collected them."""
    opened: Callable[[], _Call] = channel.stream_stream(
        f"/{_METHOD.containing_service.full_name}/{_METHOD.name}",
        response_deserializer=UploadTrajectoriesResponse.FromString,
    )
    return opened


@dataclass(frozen=True, slots=True)
class Receipt:
    """The learner's answer to one trajectory."""

    error: FleetError | None
    """None when it was accepted."""
    policy_version: int
    """The newest version at the learner."""


@dataclass(slots=True)
class _Pending:
    request: bytes
    receipt: "asyncio.Future[Receipt]"
    times_sent: int = 0


class _Files:
    """Files of one stream. Each holds one trajectory until its receipt comes, and then the next: new memory would take
    longer than the copy."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptors: list[int] = []
        self._free: list[int] = []
        self._used: dict[int, int] = {}

    def write(self, sequence: int, request: bytes) -> bytes:
        """The message that names the file, or the request itself if sending it is cheaper."""
        if not LEAST_BYTES <= len(request) <= MOST_BYTES:
            return request
        if not self._free:
            # This actor did not make a file that already exists.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            number = len(self._descriptors)
            self._descriptors.append(os.open(file_of(self._path, number), flags, 0o600))
            self._free.append(number)
        number, position = self._free[-1], 0
        while position < len(request):
            position += os.pwrite(self._descriptors[number], memoryview(request)[position:], position)
        self._used[sequence] = self._free.pop()
        named = UploadFile(number=number, size_bytes=len(request), sequence=sequence)
        return UploadTrajectoriesRequest(file=named).SerializeToString()

    def release(self, sequence: int) -> None:
        """The learner has read it."""
        number = self._used.pop(sequence, None)
        if number is not None:
            self._free.append(number)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


class Uploads:
    """The uploads of one actor; used as a context manager, which owns the stream. The first upload opens it."""

    def __init__(
        self,
        open_stream: Callable[[], _Call],
        *,
        limits: LimitsConfig,
        metrics: ActorMetrics,
        rng: random.Random,
        on_outlived: Callable[[int], None] = lambda newest: None,
    ) -> None:
        """`on_outlived` is called with the incarnation that the learner takes for a later start of this actor."""
        self._on_outlived = on_outlived
        self._open_stream = open_stream
        self._limits = limits
        self._metrics = metrics
        self._accepted = metrics.uploads.labels(ACCEPTED)
        self._sequences = itertools.count(1)
        self._room = asyncio.Semaphore(limits.uploads_in_flight)
        self._pending: dict[int, _Pending] = {}
        self._unsent: deque[int] = deque()
        self._in_flight: set[int] = set()
        self._window = limits.uploads_in_flight
        self._files: _Files | None = None
        self._learner_bytes = UNTOLD_MESSAGE_BYTES
        self._told = asyncio.Event()
        self._wake = asyncio.Event()
        self._backoff = Backoff(limit=limits.reconnect_seconds, rng=rng)
        self._last_error = "the learner was never reached"
        self._loop = asyncio.get_running_loop()
        self._group = asyncio.TaskGroup()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._away = False

    async def __aenter__(self) -> "Uploads":
        await self._group.__aenter__()
        self._runner = self._group.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        if self._runner is not None:
            self._runner.cancel()
        for pending in self._pending.values():
            if not pending.receipt.done():
                pending.receipt.set_exception(_leaving())
        await self._group.__aexit__(kind, error, traceback)

    def next_sequence(self) -> int:
        """The number of the next trajectory; may be called from any thread."""
        return next(self._sequences)

    def begin(self, trajectory: EncodedTrajectory) -> "concurrent.futures.Future[Receipt]":
        """Starts `upload` from any thread; it continues even if it is no longer waited for."""
        return asyncio.run_coroutine_threadsafe(self.upload(trajectory), self._loop)

    async def upload(self, trajectory: EncodedTrajectory) -> Receipt:
        """Sends it, also over a new stream, until a receipt comes; raises DeadlineExceeded if none comes in time."""
        size = len(trajectory.request)
        limit = min(self._limits.message_bytes, self._learner_bytes)
        if size > min(limit, UNTOLD_MESSAGE_BYTES):
            limit = await self._limit(size)
        if size > limit:
            self._metrics.uploads.labels("TOO_LARGE").inc()
            own = limit == self._limits.message_bytes
            whose = "limits.message_bytes" if own else "the learner's listen.max_message_bytes"
            raise ResourceExhausted(
                f"the trajectory has {size} bytes; the limit is {limit} ({whose}):"
                " use a smaller training.trajectory_steps or num_envs",
                reason="TOO_LARGE",
            )
        try:
            deadline = self._loop.time() + self._limits.upload_seconds
            if self._room.locked():
                async with asyncio.timeout_at(deadline):
                    await self._room.acquire()
            else:
                await self._room.acquire()
            try:
                receipt = await self._receipt(trajectory, deadline)
            finally:
                self._room.release()
        except TimeoutError:
            self._metrics.uploads.labels("DEADLINE_EXCEEDED").inc()
            seconds = self._limits.upload_seconds
            text = f"no receipt for trajectory {trajectory.sequence} within {seconds:g} seconds: {self._last_error}"
            raise DeadlineExceeded(text) from None
        if receipt.error is None:
            self._accepted.inc()
            return receipt
        self._metrics.uploads.labels(receipt.error.reason).inc()
        if receipt.error.reason == OLD_INCARNATION:
            self._on_outlived(int(receipt.error.metadata.get("newest_incarnation", -1)))
        return receipt

    async def _limit(self, size: int) -> int:
        """The largest allowed message. A learner names it when the stream opens; only very large ones wait for that."""
        if size > UNTOLD_MESSAGE_BYTES and not self._told.is_set():
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.connect_seconds):
                    await self._told.wait()
        return min(self._limits.message_bytes, self._learner_bytes)

    async def _receipt(self, trajectory: EncodedTrajectory, deadline: float) -> Receipt:
        if self._closed:
            raise _leaving()
        pending = _Pending(trajectory.request, self._loop.create_future())
        self._pending[trajectory.sequence] = pending
        self._unsent.append(trajectory.sequence)
        self._wake.set()
        # Cheaper than a timeout around it, and every trajectory has one.
        timer = self._loop.call_at(deadline, _give_up, pending.receipt)
        try:
            return await pending.receipt
        finally:
            timer.cancel()
            del self._pending[trajectory.sequence]

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            try:
                await self._session()
            except STREAM_ERRORS as error:
                cause = fleet_error_of(error)
            self._last_error = cause.message
            self._in_flight.clear()
            self._unsent = deque(sorted(self._pending))
            pause = self._backoff.next()
            self._metrics.reconnects.labels("learner").inc()
            # Logged once, so that a learner that stays unreachable does not fill the log.
            (log.debug if self._away else log.warning)(
                "upload_stream_broken",
                reason=cause.reason,
                message=cause.message,
                unacknowledged=len(self._pending),
                retry_seconds=round(pause, 3),
            )
            self._away = True
            await asyncio.sleep(pause)
            if self._pending:
                self._wake.set()
            else:
                self._wake.clear()

    async def _session(self) -> None:
        # No deadline: each upload has its own, and the stream is kept for the next.
        call = self._open_stream()
        try:
            await together(self._read(call), self._write(call))
        finally:
            call.cancel()
            self._drop_files()

    async def _write(self, call: _Call) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._unsent and len(self._in_flight) < self._window:
                    sequence = self._unsent.popleft()
                    pending = self._pending.get(sequence)
                    if pending is None:
                        continue
                    self._in_flight.add(sequence)
                    if pending.times_sent:
                        self._metrics.resent_uploads.inc()
                    pending.times_sent += 1
                    self._metrics.upload_bytes.inc(len(pending.request))
                    await call.write(self._message(sequence, pending.request))
        except asyncio.InvalidStateError:
            return  # the stream has ended; the reader says why

    def _message(self, sequence: int, request: bytes) -> bytes:
        if self._files is None:
            return request
        try:
            message = self._files.write(sequence, request)
        except OSError as error:
            log.warning("upload_files_given_up", error=str(error))
            self._drop_files()
            return request
        if message is not request:
            self._metrics.shared_uploads.inc()
        return message

    def _drop_files(self) -> None:
        """Sends everything from now on, until the next stream."""
        if self._files is not None:
            self._files.close()
            self._files = None

    async def _read(self, call: _Call) -> None:
        told = await call.initial_metadata()
        self._learner_bytes = told_message_bytes(told) or UNTOLD_MESSAGE_BYTES
        self._told.set()
        if path := told_files(told):
            self._files = _Files(path)
        while isinstance(response := await call.read(), UploadTrajectoriesResponse):
            self._backoff.reset()
            self._away = False
            if _is_unreadable(response):
                self._drop_files()
                self._in_flight.discard(response.sequence)
                self._unsent.appendleft(response.sequence)
                self._wake.set()
                continue
            for sequence in response.also_accepted:
                self._settle(sequence, Receipt(None, response.policy_version))
            # Without credits, one is still sent, because its receipt announces new room.
            self._window = max(1, min(self._limits.uploads_in_flight, response.credits))
            pending = self._pending.get(response.sequence)
            sent_before = pending is not None and pending.times_sent > 1
            self._settle(response.sequence, _receipt(response, sent_before=sent_before))
            if self._unsent:
                self._wake.set()
        raise Unavailable("the learner ended the stream")

    def _settle(self, sequence: int, receipt: Receipt) -> None:
        self._in_flight.discard(sequence)
        if self._files is not None:
            self._files.release(sequence)
        pending = self._pending.get(sequence)
        if pending is not None and not pending.receipt.done():
            pending.receipt.set_result(receipt)


def _is_unreadable(response: UploadTrajectoriesResponse) -> bool:
    """Whether the learner could not read the file of this trajectory."""
    return bool(response.status.code) and error_from_status(response.status).reason == UNREADABLE


def _give_up(receipt: "asyncio.Future[Receipt]") -> None:
    if not receipt.done():
        receipt.set_exception(TimeoutError())


def _leaving() -> Unavailable:
    return Unavailable("the actor leaves; the trajectory may not have arrived")


def _receipt(response: UploadTrajectoriesResponse, *, sent_before: bool) -> Receipt:
    if response.status.code == 0:
        return Receipt(None, response.policy_version)
    error = error_from_status(response.status)
    if sent_before and isinstance(error, FailedPrecondition) and error.reason == DUPLICATE:
        return Receipt(None, response.policy_version)
    return Receipt(error, response.policy_version)
