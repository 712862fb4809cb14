"""A link that fails on command."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from parlmesh.testing.proxy import Proxy

SECONDS = 60.0


@contextlib.asynccontextmanager
async def echoing() -> AsyncIterator[Proxy]:
    """A proxy in front of an echo server."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(4096):
                writer.write(chunk)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server, Proxy(f"{host}:{port}") as proxy:
        yield proxy


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, proxy: Proxy) -> "Caller":
        host, port = proxy.address.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, text: bytes, seconds: float = SECONDS) -> bytes:
        self._writer.write(text)
        async with asyncio.timeout(seconds):
            return await self._reader.readexactly(len(text))

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self._reader.readexactly(size)


async def test_bytes_go_through_and_come_back() -> None:
    async with echoing() as proxy:
        assert await (await Caller.to(proxy)).ask(b"x" * 100_000) == b"x" * 100_000


async def test_a_cut_resets_every_connection_and_the_next_one_works() -> None:
    async with echoing() as proxy:
        caller = await Caller.to(proxy)
        await caller.ask(b"one")
        proxy.cut()
        with pytest.raises(OSError, match="reset"):
            await caller.read(1)
        assert proxy.cuts == 1
        assert await (await Caller.to(proxy)).ask(b"two") == b"two"


async def test_a_link_that_refuses_resets_new_connections_too_until_it_is_healed() -> None:
    async with echoing() as proxy:
        proxy.refuse()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await (await Caller.to(proxy)).ask(b"one")
        proxy.heal()
        assert await (await Caller.to(proxy)).ask(b"two") == b"two"


@pytest.mark.parametrize("direction", [{"up": False}, {"down": False}, {}])
async def test_what_is_held_back_arrives_once_the_link_is_healed(direction: dict[str, bool]) -> None:
    async with echoing() as proxy:
        caller = await Caller.to(proxy)
        await caller.ask(b"one")
        proxy.hold(**direction)
        with pytest.raises(TimeoutError):
            await caller.ask(b"two", seconds=0.2)
        assert proxy.up.held + proxy.down.held == 1
        proxy.heal()
        assert await caller.read(3) == b"two"


async def test_a_slow_link_delivers_late_and_in_small_pieces() -> None:
    async with echoing() as proxy:
        caller = await Caller.to(proxy)
        proxy.slow(delay_seconds=0.1)
        started = time.monotonic()
        await caller.ask(b"one")
        assert time.monotonic() - started >= 0.2
        proxy.slow(bytes_per_second=5_000)
        started = time.monotonic()
        await caller.ask(b"x" * 1000)
        assert time.monotonic() - started >= 0.15
        assert proxy.up.slowed == 2
