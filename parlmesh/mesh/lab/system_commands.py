"""System commands with a deadline, and sockets inside a namespace."""

import asyncio
import ctypes
import os
import socket
import threading
from pathlib import Path

from parlmesh.errors import FailedPrecondition

_SECONDS = 20.0
_NEW_NETWORK = 0x40000000


async def command(*words: str, seconds: float = _SECONDS) -> str:
    """A command's output; raises FailedPrecondition with its error output when it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise FailedPrecondition(f"{' '.join(words)} took longer than {seconds:g} s") from None
    # ping exits with 1 when replies are missing, which is a valid result here.
    if process.returncode and not (words[-1:] and "ping" in words and process.returncode == 1):
        raise FailedPrecondition(f"{' '.join(words)} failed: {errors.decode(errors='replace').strip()[:300]}")
    return output.decode(errors="replace")


def listening_inside(namespace: str, port: int) -> socket.socket:
    """A socket that listens on the loopback of a namespace; it can be used from any namespace."""
    found: list[socket.socket] = []
    trouble: list[OSError] = []

    def enter() -> None:
        # setns affects only this thread, which ends afterwards.
        library = ctypes.CDLL(None, use_errno=True)
        handle = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
        try:
            if library.setns(handle, _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            inside = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            inside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            inside.bind(("127.0.0.1", port))
            inside.listen()
            inside.setblocking(False)
            found.append(inside)
        except OSError as error:
            trouble.append(error)
        finally:
            os.close(handle)

    thread = threading.Thread(target=enter, name=f"into {namespace}")
    thread.start()
    thread.join()
    if trouble:
        raise FailedPrecondition(f"the namespace {namespace} cannot be entered: {trouble[0].strerror}")
    return found[0]


class Relay:
    """Forwards connections from inside a namespace to a server outside, so that actors there reach the scheduler.

    The connection to the scheduler is not one of the links under test.
    """

    def __init__(self, namespace: str, port: int, host: str, target: int) -> None:
        self._namespace, self._port, self._host, self._target = namespace, port, host, target
        self._server: asyncio.Server | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Relay":
        inside = listening_inside(self._namespace, self._port)
        self._server = await asyncio.start_server(self._connected, sock=inside)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, self._target)
            try:
                await asyncio.gather(_copied(reader, there_writer), _copied(there_reader, writer))
            finally:
                there_writer.close()
        except OSError:
            pass  # the other side has gone; closing tells this side
        finally:
            writer.close()
            self._under_way.discard(task)


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
