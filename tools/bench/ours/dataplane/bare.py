"""The speed of the transport alone: bytes over grpc.aio, without codecs, checks, receipts or digests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from parlmesh.rpc.grpc_options import server_options

SERVICE = "bench.Bare"
UPLOAD, DOWNLOAD = f"/{SERVICE}/Upload", f"/{SERVICE}/Download"
MAX_MESSAGE_BYTES = 8 << 20


class BareServer:
    """Takes streams of bytes, and sends the same messages to every reader that waits."""

    def __init__(self) -> None:
        self._readers: list[asyncio.Queue[Sequence[bytes]]] = []
        self._server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES))
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Upload": grpc.stream_unary_rpc_method_handler(self._upload),
            "Download": grpc.unary_stream_rpc_method_handler(self._download),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self) -> str:
        """Starts serving and returns the address."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._server.stop(None)

    def send(self, messages: Sequence[bytes]) -> None:
        for reader in self._readers:
            reader.put_nowait(messages)

    async def _upload(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        total = 0
        async for request in requests:
            total += len(request)
        return total.to_bytes(8, "little")

    async def _download(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        reader: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()
        self._readers.append(reader)
        yield b"here"
        while True:
            for message in await reader.get():
                yield message
