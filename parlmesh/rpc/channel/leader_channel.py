"""One channel to several schedulers of which one leads: calls go to the one that serves, and follow it when it changes.

Health says who serves. A server that leads no more may be cut off or stand still and so say nothing; that another one
serves is the news, and ends the calls that wait for the old one as a broken connection would.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import grpc
import grpc.aio

from ..error_statuses import error_from_rpc, says_its_reason
from .backoff import Backoff
from .leader_calls import LeaderCall, StreamCall, UnaryCall, refused

_WATCH = "/grpc.health.v1.Health/Watch"
_CHECK = "/grpc.health.v1.Health/Check"
# HealthCheckResponse{status: SERVING}; the SDK does without the package that has the message.
_SERVING = b"\x08\x01"
_CHECK_SECONDS = 2.0
_WAIT_SECONDS = 10.0
"""Longest wait for a leader of a call without a deadline."""
_LONGEST_PAUSE_SECONDS = 0.5
NOT_LEADER = "NOT_LEADER"


class LeaderChannel(grpc.aio.Channel):
    """Watches all servers from the first call to `close`."""

    def __init__(self, channels: Sequence[grpc.aio.Channel], addresses: Sequence[str]) -> None:
        self._channels = tuple(channels)
        self._addresses = tuple(addresses)
        self._serving = [False] * len(channels)
        # Said that they serve, and did not: taken again only when nobody else serves, or when they have said otherwise.
        self._mistrusted: set[int] = set()
        self._leader: int | None = None
        self._found = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []
        self._calls: set[LeaderCall] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        if watches:
            await asyncio.wait(watches)
        for channel in self._channels:
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channels[self._leader or 0].get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channels[self._leader or 0].wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        self._start()
        await self._found.wait()

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(UnaryCall, [each.unary_unary(method, *arguments, **options) for each in self._channels])

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(StreamCall, [each.unary_stream(method, *arguments, **options) for each in self._channels])

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(StreamCall, [each.stream_unary(method, *arguments, **options) for each in self._channels])

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(StreamCall, [each.stream_stream(method, *arguments, **options) for each in self._channels])

    async def leader(self, seconds: float | None) -> int:
        """Which server leads, once one does."""
        self._start()
        limit = _WAIT_SECONDS if seconds is None else min(seconds, _WAIT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._leader is None:
                    await self._found.wait()
        if self._leader is None:
            raise refused(f"none of {', '.join(self._addresses)} leads; waited {limit:g} s")
        return self._leader

    def enter(self, call: LeaderCall) -> None:
        self._calls.add(call)

    def leave(self, call: LeaderCall) -> None:
        self._calls.discard(call)

    def mistrust(self, index: int, error: grpc.aio.AioRpcError) -> bool:
        """Whether the server said that it does not lead, and so did nothing; one that is away is looked at again."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        misdirected = error_from_rpc(error).reason == NOT_LEADER
        if (misdirected or not says_its_reason(error)) and self._serving[index] and self._watches:
            self._say(index, False)
            self._mistrusted.add(index)
            # Its watch may have nothing new to tell.
            self._watches[index].cancel()
            self._watches[index] = self._watching(index)
        return misdirected

    def _calling(self, kind: type[LeaderCall], open_each: Sequence[Callable[..., Any]]) -> Callable[..., LeaderCall]:
        def call(*arguments: Any, **options: Any) -> LeaderCall:
            return kind(self, open_each, arguments, options)

        return call

    def _start(self) -> None:
        if not self._watches:
            self._watches = [self._watching(index) for index in range(len(self._addresses))]

    def _watching(self, index: int) -> "asyncio.Task[None]":
        return asyncio.create_task(self._watch(index), name=f"watches {self._addresses[index]}")

    async def _watch(self, index: int) -> None:
        channel, rng = self._channels[index], random.Random()  # noqa: S311 - spreads reconnections
        watch: Any = channel.unary_stream(_WATCH)
        check: Any = channel.unary_unary(_CHECK)
        backoff = Backoff(first=0.05, limit=_LONGEST_PAUSE_SECONDS, rng=rng)
        while True:
            pause = 0.0
            try:
                async for status in watch(b""):
                    if status != _SERVING:
                        self._mistrusted.discard(index)
                    self._say(index, status == _SERVING)
                    backoff.reset()
            except grpc.aio.AioRpcError as error:
                self._say(index, False)
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    # Too many watch it; each may still ask.
                    with suppress(grpc.aio.AioRpcError):
                        self._say(index, await check(b"", timeout=_CHECK_SECONDS) == _SERVING)
                    pause = rng.uniform(0.5, 1.5) * _CHECK_SECONDS
            await asyncio.sleep(pause or backoff.next())

    def _say(self, index: int, serving: bool) -> None:
        news = serving and not self._serving[index]
        self._serving[index] = serving
        if news and (self._leader is None or index not in self._mistrusted):
            self._elect(index)
        elif not serving and self._leader == index:
            self._elect(next((other for other, serves in enumerate(self._serving) if serves), None))

    def _elect(self, index: int | None) -> None:
        if index == self._leader:
            return
        self._leader = index
        if index is None:
            self._found.clear()
            return
        self._found.set()
        for call in tuple(self._calls):
            if call.index != index:
                call.move(self._addresses[index])
