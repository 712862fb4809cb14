"""A TCP proxy whose link fails on command: cut, silent, slow, trickling, or silent in one direction."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 64 << 10
_TRICKLE_STEP_SECONDS = 0.02


@dataclass(slots=True)
class Link:
    """One direction of all connections; changes take effect with the next chunk."""

    open: asyncio.Event
    """Cleared: bytes are held back silently, as in a network partition."""
    delay_seconds: float = 0.0
    bytes_per_second: float = 0.0
    """0 = no limit."""
    held: int = 0
    """Chunks that were held back by a closed link."""
    slowed: int = 0
    """Chunks that were delayed or trickled."""
    carried_bytes: int = 0

    async def carry(self, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        self.carried_bytes += len(chunk)
        if not self.open.is_set():
            self.held += 1
            await self.open.wait()
        if self.delay_seconds:
            self.slowed += 1
            await asyncio.sleep(self.delay_seconds)
        if self.bytes_per_second:
            self.slowed += 1
        while chunk:
            size = max(1, int(self.bytes_per_second * _TRICKLE_STEP_SECONDS)) if self.bytes_per_second else len(chunk)
            writer.write(chunk[:size])
            await writer.drain()
            chunk = chunk[size:]
            if chunk:
                await asyncio.sleep(_TRICKLE_STEP_SECONDS)


class Proxy:
    """Listens on a free port and forwards bytes to `target`, host:port; `async with` owns it."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self.up, self.down = Link(asyncio.Event()), Link(asyncio.Event())
        self.up.open.set()
        self.down.open.set()
        self.cuts = 0
        """Connections that were cut or refused."""
        self._refusing = False
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection; new ones are served."""
        self.cuts += len(self._connections)
        for task in self._connections:
            task.cancel()

    def refuse(self) -> None:
        """Resets every connection and every new one."""
        self._refusing = True
        self.cut()

    def hold(self, *, up: bool = True, down: bool = True) -> None:
        """Holds bytes back, in both directions or one."""
        for link, wanted in ((self.up, up), (self.down, down)):
            if wanted:
                link.open.clear()

    def slow(self, *, delay_seconds: float = 0.0, bytes_per_second: float = 0.0) -> None:
        """Delays every chunk, or splits it into small pieces."""
        for link in (self.up, self.down):
            link.delay_seconds, link.bytes_per_second = delay_seconds, bytes_per_second

    def heal(self) -> None:
        """Repairs the link; held bytes are delivered."""
        self._refusing = False
        self.slow()
        self.up.open.set()
        self.down.open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._refusing:
            self.cuts += 1
            _reset(writer)
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            # Cancelled by `cut` or at the end: the link is closed either way.
            pass
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        pumps = [
            asyncio.create_task(_pump(reader, far_writer, self.up)),
            asyncio.create_task(_pump(far_reader, writer, self.down)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            _reset(far_writer)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            await link.carry(chunk, writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes like a dying machine: the peer gets a reset instead of an orderly close."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
