"""Which errors are transient, and calls that are retried until they succeed."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, ResourceExhausted, Unavailable
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from ..config import ClientConfig
from .task_parcels import TASKS_PER_REQUEST

T = TypeVar("T")

log = get_logger("parlmesh.client")

# Statuses of calls that ended because their connection or their server did.
_CUT_OFF = frozenset({"CANCELLED", "UNKNOWN", "ABORTED"})


def is_temporary(error: FleetError) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, ResourceExhausted):
        return error.retry_after_seconds > 0
    return isinstance(error, (Unavailable, DeadlineExceeded)) or error.reason in _CUT_OFF


def pause_after(error: FleetError, backoff: Backoff) -> float:
    """Seconds to wait before the next try: the server's hint, or the next wait of the series."""
    wait = backoff.next()
    return max(wait, error.retry_after_seconds) if isinstance(error, ResourceExhausted) else wait


async def retried(
    call: Callable[[float], Awaitable[T]], *, what: str, address: str, seconds: float, rng: random.Random
) -> T:
    """Repeats a call, given the seconds left, until it succeeds, fails permanently, or the time is up."""
    backoff = Backoff(first=0.05, limit=1.0, rng=rng)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await call(deadline - loop.time())
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
        pause = pause_after(error, backoff)
        if not is_temporary(error):
            raise error
        if loop.time() + pause >= deadline:
            raise unreachable(error, what, address, seconds)
        await asyncio.sleep(pause)


class SchedulerCalls:
    """Single calls to one scheduler, repeated while it is away; once `error` is set, they raise it."""

    def __init__(self, channel: grpc.aio.Channel, address: str, config: ClientConfig, rng: random.Random) -> None:
        self.stub = SchedulerServiceStub(channel)
        self.error: FleetError | None = None
        """The error that ended the connection."""
        self.address = address
        self._config = config
        self._rng = rng

    def check(self) -> None:
        """Raises the error that ended the connection, if any."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Raises the error that ended the connection from calls that ended with it: gRPC cancels them, as if the caller
        had been cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.error is None or task is None or task.cancelling():
                raise
            raise self.error from None

    async def call(self, method: Callable[..., Awaitable[T]], request: Any, seconds: float | None = None) -> T:
        """One unary call, with a deadline for all its tries."""
        self.check()

        async def once(left: float) -> T:
            return await method(request, timeout=left)

        limit = self._config.call_seconds if seconds is None else seconds
        with self.ending():
            return await retried(once, what="the scheduler", address=self.address, seconds=limit, rng=self._rng)

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """What takes several calls, with a deadline for all its tries; repeated only while the scheduler is away."""

        async def once(_: float) -> T:
            self.check()
            try:
                with self.ending():
                    return await work()
            except Unavailable as error:
                if isinstance(error.__cause__, grpc.aio.AioRpcError):
                    raise error.__cause__ from None  # as `retried` expects it
                raise

        limit = self._config.call_seconds
        return await retried(once, what="the scheduler", address=self.address, seconds=limit, rng=self._rng)

    async def cancel(self, task_ids: Sequence[str]) -> None:
        """Best effort: a task that cannot be cancelled ends by itself."""
        try:
            for start in range(0, len(task_ids), TASKS_PER_REQUEST):
                request = pb.CancelTasksRequest(task_ids=task_ids[start : start + TASKS_PER_REQUEST])
                await self.call(self.stub.CancelTasks, request)
        except FleetError as error:
            log.warning("cancel_failed", tasks=len(task_ids), reason=error.reason, message=error.message)


def unreachable(error: FleetError, what: str, address: str, seconds: float) -> FleetError:
    """The last error of a series of tries, as one sentence about all of them."""
    if isinstance(error, ResourceExhausted):
        return error
    kind = DeadlineExceeded if isinstance(error, DeadlineExceeded) else Unavailable
    return kind(f"{what} at {address} gave no answer within {seconds:g} s: {error.message}", address=address)
