import asyncio
import os
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from parlmesh.config import ListenConfig
from parlmesh.errors import ConfigError
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer
from parlmesh.security import SecurityConfig
from parlmesh.testing import free_port, serve

SECONDS = 60.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_SAW_NO_STREAM = _NO_ERROR = bytes(4)


def _frame(kind: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + body


@pytest.mark.parametrize("address", ["", "localhost", "localhost:"])
async def test_an_address_without_a_port_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="address must be host:port"):
        open_channel(address)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", "127.0.0.1:0", "localhost:-1", "[::1]:65536", "dns:///localhost:70000", "host:http"]
)
async def test_a_port_that_no_machine_has_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"its port must be 1 to 65535"):
        open_channel(address)


async def test_a_channel_connects_again_after_the_server_came_back() -> None:
    port = free_port()

    def server() -> FleetServer:
        return FleetServer(listen=ListenConfig(port=port), security=SecurityConfig(), services=[])

    async with asyncio.timeout(60), open_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for _ in range(2):
            async with server():
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS, wait_for_ready=True)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)


async def test_a_call_to_nobody_fails_at_once() -> None:
    async with open_channel(f"127.0.0.1:{free_port()}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_grpc_does_not_repeat_a_call_that_a_leaving_server_did_not_see() -> None:
    """gRPC's own repetitions have no limit while a connection is dying (decision 0064)."""
    calls = 0
    connections = []

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        connections.append(asyncio.current_task())
        await reader.readexactly(len(_PREFACE))
        writer.write(_frame(_SETTINGS, 0, b""))
        while (head := await reader.readexactly(_HEAD_BYTES))[3] != _HEADERS:
            await reader.readexactly(int.from_bytes(head[:3], "big"))
        calls += 1
        writer.write(_frame(_GOAWAY, 0, _SAW_NO_STREAM + _NO_ERROR))
        writer.close()

    async with await asyncio.start_server(leave, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with open_channel(f"{host}:{port}") as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        await asyncio.gather(*filter(None, connections))
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert calls == 1


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:1")
    async with serve([]) as address, open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)


async def test_a_token_never_travels_readable_over_a_network() -> None:
    with pytest.raises(ConfigError, match="the token would be sent unencrypted to scheduler:50051"):
        open_channel("scheduler:50051", SecurityConfig(token=SecretStr("t")))
