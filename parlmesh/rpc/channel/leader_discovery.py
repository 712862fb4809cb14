"""One channel to several schedulers, one of which leads: calls go to the serving one and follow it when it changes.

Health shows which one serves. A deposed leader may be cut off or frozen and so report nothing; when another one starts
to serve, calls that wait for the old one end as if the connection had broken.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import grpc
import grpc.aio

from ..error_statuses import error_from_rpc, says_its_reason
from .backoff import Backoff
from .failover_calls import LeaderCall, StreamCall, UnaryCall, refused
from .names import SCHEME, Name

_WATCH = "/grpc.health.v1.Health/Watch"
_CHECK = "/grpc.health.v1.Health/Check"
# HealthCheckResponse{status: SERVING}; the SDK does not depend on the package that has the message.
_SERVING = b"\x08\x01"
_CHECK_SECONDS = 2.0
_WAIT_SECONDS = 10.0
"""How long a call without a deadline waits for a leader."""
_LONGEST_PAUSE_SECONDS = 0.5
_LOOK_UP_SECONDS = 5.0
_LEADERLESS_SECONDS = 0.5
NOT_LEADER = "NOT_LEADER"


class Each:
    """One method of every server, opened when it is first called; servers may come and go."""

    def __init__(self, channels: Mapping[int, grpc.aio.Channel], make: Callable[[grpc.aio.Channel], Any]) -> None:
        self._channels = channels
        self._make = make
        self._made: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self._made:
            self._made = {known: made for known, made in self._made.items() if known in self._channels}
            self._made[index] = self._make(self._channels[index])
        return self._made[index]


class LeaderChannel(grpc.aio.Channel):
    """Watches all servers from the first call to `close`. A name stands for all addresses that DNS has for it."""

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        addresses: Sequence[str],
        names: Mapping[Name, Callable[[str], grpc.aio.Channel]] | None = None,
    ) -> None:
        self._channels = dict(enumerate(channels))
        self._addresses = dict(enumerate(addresses))
        self._names = dict(names or {})
        self._named: dict[str, int] = {}
        self._next_index = len(channels)
        self._serving = dict.fromkeys(self._channels, False)
        # Servers that answered at the last try; they are kept even when DNS no longer has them.
        self._answering: set[int] = set()
        # Servers that reported SERVING but refused calls. They are used again only if no other server serves, or after
        # their status changes.
        self._mistrusted: set[int] = set()
        self._leader: int | None = None
        self._found = asyncio.Event()
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._lookups: list[asyncio.Task[None]] = []
        self._calls: set[LeaderCall] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        watches = [*self._watches.values(), *self._lookups]
        self._watches, self._lookups = {}, []
        for watch in watches:
            watch.cancel()
        if watches:
            await asyncio.wait(watches)
        for channel in list(self._channels.values()):
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        shown = self._shown()
        return grpc.ChannelConnectivity.IDLE if shown is None else shown.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        shown = self._shown()
        await (asyncio.Event().wait() if shown is None else shown.wait_for_state_change(last_observed_state))

    async def channel_ready(self) -> None:
        self._start()
        await self._found.wait()

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(UnaryCall, lambda each: each.unary_unary(method, *arguments, **options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(StreamCall, lambda each: each.unary_stream(method, *arguments, **options))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(StreamCall, lambda each: each.stream_unary(method, *arguments, **options))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._calling(StreamCall, lambda each: each.stream_stream(method, *arguments, **options))

    async def leader(self, seconds: float | None) -> int:
        """The index of the server that leads, once one does."""
        self._start()
        limit = _WAIT_SECONDS if seconds is None else min(seconds, _WAIT_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._leader is None:
                    await self._found.wait()
        if self._leader is None:
            raise refused(f"none of {self._described()} leads; waited {limit:g} s")
        return self._leader

    def enter(self, call: LeaderCall) -> None:
        self._calls.add(call)

    def leave(self, call: LeaderCall) -> None:
        self._calls.discard(call)

    def mistrust(self, index: int, error: grpc.aio.AioRpcError) -> bool:
        """Whether the server refused the call because it does not lead. Then, or if it cannot be reached, its health
        watch is restarted."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            return False
        misdirected = error_from_rpc(error).reason == NOT_LEADER
        if (misdirected or not says_its_reason(error)) and self._serving.get(index) and self._watches:
            self._say(index, False)
            self._mistrusted.add(index)
            # The old watch may have nothing new to report.
            self._watches[index].cancel()
            self._watches[index] = self._watching(index)
        return misdirected

    def _calling(self, kind: type[LeaderCall], make: Callable[[grpc.aio.Channel], Any]) -> Callable[..., LeaderCall]:
        open_each = Each(self._channels, make)

        def call(*arguments: Any, **options: Any) -> LeaderCall:
            return kind(self, open_each, arguments, options)

        return call

    def _start(self) -> None:
        if not self._watches and not self._lookups:
            self._watches = {index: self._watching(index) for index in self._addresses}
            self._lookups = [
                asyncio.create_task(self._look_up(name, make), name=f"looks up {name.host}")
                for name, make in self._names.items()
            ]

    def _watching(self, index: int) -> "asyncio.Task[None]":
        return asyncio.create_task(self._watch(index), name=f"watches {self._addresses[index]}")

    async def _look_up(self, name: Name, make: Callable[[str], grpc.aio.Channel]) -> None:
        while True:
            found = await name.addresses()
            for address in found:
                if address not in self._named:
                    self._add(address, make(address))
            for address in [known for known in self._named if found and known not in found]:
                if self._named[address] not in self._answering:
                    await self._remove(address)
            # A new server may be the one that leads next.
            await asyncio.sleep(_LOOK_UP_SECONDS if self._leader is not None else _LEADERLESS_SECONDS)

    def _add(self, address: str, channel: grpc.aio.Channel) -> None:
        index, self._next_index = self._next_index, self._next_index + 1
        self._named[address], self._addresses[index], self._channels[index] = index, address, channel
        self._serving[index] = False
        # Assumed until its first answer.
        self._answering.add(index)
        self._watches[index] = self._watching(index)

    async def _remove(self, address: str) -> None:
        index = self._named.pop(address)
        watch = self._watches.pop(index)
        watch.cancel()
        await asyncio.wait([watch])
        self._say(index, False)
        self._mistrusted.discard(index)
        del self._serving[index], self._addresses[index]
        await self._channels.pop(index).close()

    def _shown(self) -> grpc.aio.Channel | None:
        """The channel whose state represents all."""
        index = self._leader if self._leader is not None else next(iter(self._channels), None)
        return None if index is None else self._channels[index]

    def _described(self) -> str:
        names = [f"{SCHEME}{name.authority}" for name in self._names]
        return ", ".join([*names, *self._addresses.values()])

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
                    self._answering.add(index)
                    backoff.reset()
            except grpc.aio.AioRpcError as error:
                self._say(index, False)
                self._answering.discard(index)
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    # Too many callers watch it; each may still ask.
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
            self._elect(next((other for other, serves in self._serving.items() if serves), None))

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
