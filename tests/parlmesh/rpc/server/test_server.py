import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from parlmesh.config import ListenConfig
from parlmesh.errors import ConfigError, FailedPrecondition, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.rpc.grpc_options import CLIENT_PING_SECONDS, SERVER_LEAST_PING_SECONDS, channel_options, server_options
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.security import SecurityConfig
from parlmesh.testing import wait_until_async
from parlmesh.v1 import metrics_service_pb2 as pb
from parlmesh.v1 import metrics_service_pb2_grpc as rpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
METRICS = "parlmesh.v1.MetricsService"
SECONDS = 60.0


class Metrics(rpc.MetricsServiceServicer):
    """Answers QueryMetrics when told to."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.answer = asyncio.Event()

    async def QueryMetrics(self, request: pb.QueryMetricsRequest, context: Any) -> pb.QueryMetricsResponse:
        self.entered.set()
        await self.answer.wait()
        return pb.QueryMetricsResponse()


def service(servicer: Metrics | None = None) -> Service:
    def register(server: grpc.aio.Server) -> None:
        rpc.add_MetricsServiceServicer_to_server(servicer or Metrics(), server)

    return Service(METRICS, register)


def fleet_server(servicer: Metrics | None = None, **listen: Any) -> FleetServer:
    return FleetServer(listen=ListenConfig(**listen), security=SecurityConfig(), services=[service(servicer)])


@asynccontextmanager
async def health_of(server: FleetServer) -> AsyncIterator[Any]:
    async with open_channel(server.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def check(stub: Any, name: str = "") -> int:
    response = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS)
    return int(response.status)


async def test_health_is_not_serving_until_told_otherwise() -> None:
    async with fleet_server() as server, health_of(server) as health:
        for name in ("", METRICS):
            assert await check(health, name) == NOT_SERVING
        server.set_serving(True)
        for name in ("", METRICS):
            assert await check(health, name) == SERVING
        server.set_serving(False)
        assert await check(health) == NOT_SERVING


async def test_health_of_a_service_that_is_not_here_is_not_found() -> None:
    async with fleet_server() as server, health_of(server) as health:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await check(health, "parlmesh.v1.LearnerService")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        stream = health.Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=SECONDS)
        assert (await stream.read()).status == SERVICE_UNKNOWN
        stream.cancel()


async def test_health_lists_every_service() -> None:
    async with fleet_server() as server, health_of(server) as health:
        server.set_serving(True)
        listed = await health.List(
            health_pb2.HealthListRequest(),  # type: ignore[attr-defined]
            timeout=SECONDS,
        )
        assert {name: one.status for name, one in listed.statuses.items()} == {"": SERVING, METRICS: SERVING}


async def test_a_watcher_too_many_is_refused_and_one_that_left_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlmesh.rpc.server.health.MOST_WATCHERS", 1)
    async with fleet_server(drain_seconds=0.2) as server, health_of(server) as health:
        first = health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS).read()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        await wait_until_async(lambda: server._health._watchers == 0, SECONDS)
        second = health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert (await second.read()).status == NOT_SERVING
        second.cancel()


async def test_a_watcher_of_health_sees_every_change_and_the_drain_ends_it() -> None:
    server = fleet_server(drain_seconds=60)
    await server.start()
    async with health_of(server) as health:
        stream = health.Watch(health_pb2.HealthCheckRequest(service=METRICS), timeout=SECONDS)
        assert (await stream.read()).status == NOT_SERVING
        server.set_serving(True)
        assert (await stream.read()).status == SERVING
        async with asyncio.timeout(SECONDS):
            drain = asyncio.ensure_future(server.drain())
            assert (await stream.read()).status == NOT_SERVING
            assert await stream.read() is grpc.aio.EOF
            await drain


async def test_a_draining_server_never_serves_again() -> None:
    server = fleet_server()
    await server.start()
    server.set_serving(True)
    await server.drain()
    server.set_serving(True)
    assert server._health._status("") == NOT_SERVING


async def test_draining_lets_a_call_in_flight_finish_and_refuses_new_ones() -> None:
    servicer = Metrics()
    server = fleet_server(servicer, drain_seconds=60)
    await server.start()
    async with asyncio.timeout(SECONDS), open_channel(server.address) as channel, asyncio.TaskGroup() as group:
        stub: Any = rpc.MetricsServiceStub(channel)
        call = stub.QueryMetrics(pb.QueryMetricsRequest(), timeout=SECONDS)
        await servicer.entered.wait()
        drain = group.create_task(server.drain())
        await _until_refused(server.address)
        assert not drain.done()
        servicer.answer.set()
        assert await call == pb.QueryMetricsResponse()


async def _until_refused(address: str) -> None:
    while await _answers(address):
        pass


async def _answers(address: str) -> bool:
    async with open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


async def test_draining_ends_what_takes_too_long() -> None:
    servicer = Metrics()
    server = fleet_server(servicer, drain_seconds=0.05)
    await server.start()
    async with asyncio.timeout(SECONDS), open_channel(server.address) as channel:
        stub: Any = rpc.MetricsServiceStub(channel)
        call = stub.QueryMetrics(pb.QueryMetricsRequest(), timeout=SECONDS)
        await servicer.entered.wait()
        await server.drain()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def test_draining_twice_and_draining_before_the_start_are_harmless() -> None:
    await fleet_server().drain()
    server = fleet_server()
    await server.start()
    await server.drain()
    await server.drain()


async def test_a_server_starts_once() -> None:
    async with fleet_server() as server:
        with pytest.raises(FailedPrecondition):
            await server.start()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_port_0_is_a_free_port_and_the_address_reaches_it(host: str) -> None:
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")
    async with fleet_server(host=host) as server, health_of(server) as health:
        assert server.port > 0
        assert await check(health) == NOT_SERVING


async def test_a_port_that_a_fleet_server_has_is_refused_with_its_address() -> None:
    async with fleet_server() as first:
        with pytest.raises(Unavailable) as error:
            await fleet_server(port=first.port).start()
    assert error.value.message == f"cannot listen on 127.0.0.1:{first.port}: address already in use"
    assert error.value.reason == "CANNOT_LISTEN"


async def test_a_host_that_is_not_of_this_machine_is_refused_with_its_address() -> None:
    listen, told = ListenConfig(host="192.0.2.1"), SecurityConfig(insecure=True)
    server = FleetServer(listen=listen, security=told, services=[])
    with pytest.raises(Unavailable, match=r"cannot listen on 192\.0\.2\.1:0: cannot assign requested address"):
        await server.start()


async def test_the_port_is_free_after_the_drain() -> None:
    async with fleet_server() as first:
        port = first.port
    async with fleet_server(port=port) as second:
        assert second.port == port


async def test_reflection_lists_exactly_what_is_served() -> None:
    async with fleet_server() as server, open_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in stub.ServerReflectionInfo(iter([request]), timeout=SECONDS):
            names = [one.name for one in response.list_services_response.service]
    assert names == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", METRICS]


async def test_reflection_gives_the_files_of_a_service() -> None:
    async with fleet_server() as server, open_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=METRICS)
        async for response in stub.ServerReflectionInfo(iter([request]), timeout=SECONDS):
            files = response.file_descriptor_response.file_descriptor_proto
    assert any(b"parlmesh/v1/metrics_service.proto" in file for file in files)


@pytest.mark.parametrize("size", [1500, 4000])
async def test_a_message_over_the_limit_is_refused_and_the_server_lives(size: int) -> None:
    servicer = Metrics()
    servicer.answer.set()
    async with fleet_server(servicer, max_message_bytes=2048) as server, open_channel(server.address) as channel:
        stub: Any = rpc.MetricsServiceStub(channel)
        request = pb.QueryMetricsRequest(run_id="x" * size)
        if size < 2048:
            assert await stub.QueryMetrics(request, timeout=SECONDS) == pb.QueryMetricsResponse()
        else:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.QueryMetrics(request, timeout=SECONDS)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await stub.QueryMetrics(pb.QueryMetricsRequest(), timeout=SECONDS) == pb.QueryMetricsResponse()


async def test_a_client_refuses_to_send_more_than_its_own_limit() -> None:
    async with fleet_server() as server, open_channel(server.address, max_message_bytes=2048) as channel:
        stub: Any = rpc.MetricsServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.QueryMetrics(pb.QueryMetricsRequest(run_id="x" * 4000), timeout=SECONDS)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_client_pings_no_more_often_than_a_server_allows() -> None:
    client, server = dict(channel_options(1, loopback=True)), dict(server_options(1))
    assert SERVER_LEAST_PING_SECONDS < CLIENT_PING_SECONDS
    assert client["grpc.keepalive_time_ms"] > server["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_permit_without_calls"] == server["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.http2.max_pings_without_data"] == 0


async def test_an_open_server_that_others_can_reach_starts_only_when_told_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with fleet_server():
        assert not caplog.records
    with pytest.raises(
        ConfigError, match=r"listen\.host 0\.0\.0\.0 is open to other machines.*security\.insecure: true"
    ):
        await fleet_server(host="0.0.0.0").start()
    told = SecurityConfig(insecure=True)
    async with FleetServer(listen=ListenConfig(host="0.0.0.0"), security=told, services=[]):
        assert [record.getMessage() for record in caplog.records] == ["security_is_off"]
