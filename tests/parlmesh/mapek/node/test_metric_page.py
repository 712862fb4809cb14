"""Servers of metric pages: slow, endless, wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mapek.node import metric_page
from parlmesh.mapek.node.metric_page import read_page

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await answer(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"


def says(*parts: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


OK = b"HTTP/1.0 200 OK\r\n\r\n"


async def test_only_what_is_kept_is_parsed() -> None:
    page = b"# HELP up x\nup 1\nup_long 2\nbroken{ 7\nnan_total NaN\n"
    async with serving(says(OK, page)) as address:
        assert await read_page(address, ["up"]) == {"up": 1.0}
        assert await read_page(address, ["up*", "nan*"]) == {"up": 1.0, "up_long": 2.0}
        assert await read_page(address, []) == {}
        with pytest.raises(ValueError):  # noqa: PT011  # the parser's own words
            await read_page(address, ["broken*"])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n",), "not 200"),
        ((b"HTTP/1.0 500 no\r\n\r\n",), "not 200"),
        ((b"SSH-2.0-x\r\n",), "not 200"),
        ((b"",), "not 200"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nup 1\r\n",), "chunks"),
        ((OK, *[b"up 1\n" * 200_000] * 6), "larger than"),
        ((OK, b"".join(b'up{n="%d"} 1\n' % number for number in range(201))), "more than 200 samples"),
        ((OK, b'up{n="%s"} 1\n' % (b"x" * 300)), "longer than 200"),
    ],
)
async def test_a_page_that_is_not_metrics_is_described_in_words(parts: tuple[bytes, ...], said: str) -> None:
    async with serving(says(*parts)) as address:
        with pytest.raises(ValueError, match=said):
            await read_page(address, ["up*"])


async def test_a_page_that_trickles_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_page, "PAGE_SECONDS", 0.2)
    gone = asyncio.Event()

    async def drips(writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with serving(drips) as address:
        with pytest.raises(ValueError, match="not read within"):
            await read_page(address, ["up"])
        async with asyncio.timeout(20):
            await gone.wait()


@pytest.mark.parametrize("address", ["file:///etc/passwd", "http://", "http://h/a b", "http://h/\r\nX: y", "ftp://h/"])
async def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="http or https"):
        await read_page(address, ["up"])
