"""Which errors pass by themselves, and calls that wait until they have."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, ResourceExhausted, Unavailable
from parlmesh.rpc import Backoff, error_from_rpc

T = TypeVar("T")

# Statuses of calls that a connection or a server took down with it.
_CUT_OFF = frozenset({"CANCELLED", "UNKNOWN", "ABORTED"})


def passes(error: FleetError) -> bool:
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
    """Repeats a call, given the seconds left, until it succeeds, fails for good, or the time is over."""
    backoff = Backoff(first=0.05, limit=1.0, rng=rng)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await call(deadline - loop.time())
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
        pause = pause_after(error, backoff)
        if not passes(error):
            raise error
        if loop.time() + pause >= deadline:
            raise unreachable(error, what, address, seconds)
        await asyncio.sleep(pause)


def unreachable(error: FleetError, what: str, address: str, seconds: float) -> FleetError:
    """The last error of a series, as one sentence about the series."""
    if isinstance(error, ResourceExhausted):
        return error
    kind = DeadlineExceeded if isinstance(error, DeadlineExceeded) else Unavailable
    return kind(f"{what} at {address} got no answer within {seconds:g} s: {error.message}", address=address)
