"""A channel to several servers: calls go to the one that serves, and leave it when it no longer does."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.config import ListenConfig
from parlmesh.errors import ConfigError, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.rpc.channel import leader_discovery
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.security import SecurityConfig
from parlmesh.security.identity import role_named
from parlmesh.security.pem_files import write_authority, write_certificate
from parlmesh.security.tokens import TOKENS_FILE, write_token
from parlmesh.testing import free_port, wait_until_async
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1 import training_service_pb2_grpc as rpc

SECONDS = 60.0


class Trainings(rpc.TrainingServiceServicer):
    """Answers with its name, or that it does not lead; watches stay open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leads = True
        self.calls = 0
        self.asked, self.watched = asyncio.Event(), asyncio.Event()

    def register(self, server: Any) -> None:
        rpc.add_TrainingServiceServicer_to_server(self, server)

    async def ListTrainings(self, request: pb.ListTrainingsRequest, context: Any) -> pb.ListTrainingsResponse:
        self.calls += 1
        self.asked.set()
        if not self.leads:
            raise Unavailable("another one leads", reason="NOT_LEADER", leader="elsewhere:1")
        return pb.ListTrainingsResponse(next_page_token=self.name)

    async def WatchTraining(self, request: pb.WatchTrainingRequest, context: Any) -> AsyncIterator[Any]:
        self.watched.set()
        yield pb.WatchTrainingResponse()
        await asyncio.Event().wait()


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[list[FleetServer], list[Any], Any]]:
    servicers: list[Any] = [Trainings("first"), Trainings("second")]  # type: ignore[abstract]
    servers = [
        FleetServer(
            listen=ListenConfig(port=0, drain_seconds=0),
            security=SecurityConfig(),
            services=[Service("parlmesh.v1.TrainingService", each.register)],
        )
        for each in servicers
    ]
    async with (
        asyncio.timeout(60),
        servers[0],
        servers[1],
        open_channel(",".join(server.address for server in servers)) as channel,
    ):
        yield servers, servicers, rpc.TrainingServiceStub(channel)


async def who(stub: Any) -> str:
    """Calls as every caller does: again if the leader changed during the call."""
    while True:
        try:
            return str((await stub.ListTrainings(pb.ListTrainingsRequest(), timeout=SECONDS)).next_page_token)
        except grpc.aio.AioRpcError as error:
            if "another scheduler leads" not in (error.details() or ""):
                raise


async def test_a_call_waits_for_a_leader_and_goes_to_it() -> None:
    async with two_servers() as (servers, servicers, stub):
        asked = asyncio.create_task(who(stub))
        await asyncio.sleep(0)
        servers[1].set_serving(True)
        assert await asked == "second"
        assert servicers[0].calls == 0
        servicers[1].leads = False
        servers[1].set_serving(False)
        servers[0].set_serving(True)
        assert await who(stub) == "first"


async def test_a_stream_to_a_server_that_says_nothing_ends_when_another_serves() -> None:
    async with two_servers() as (servers, servicers, stub):
        servers[0].set_serving(True)
        call = stub.WatchTraining(pb.WatchTrainingRequest())
        assert isinstance(await call.read(), pb.WatchTrainingResponse)
        reading = asyncio.create_task(call.read())
        await servicers[0].watched.wait()
        servers[1].set_serving(True)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reading
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await who(stub) == "second"


async def test_a_server_that_serves_and_does_not_lead_is_asked_again_only_when_nobody_else_serves() -> None:
    async with two_servers() as (servers, servicers, stub):
        servicers[0].leads = False
        servers[0].set_serving(True)
        asked = asyncio.create_task(who(stub))
        await servicers[0].asked.wait()
        servers[1].set_serving(True)
        assert await asked == "second"


async def test_a_reader_that_is_cancelled_is_cancelled() -> None:
    async with two_servers() as (servers, _, stub):
        servers[0].set_serving(True)
        call = stub.WatchTraining(pb.WatchTrainingRequest())
        await call.read()
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading


async def test_without_a_leader_a_call_says_who_was_asked() -> None:
    addresses = f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    async with open_channel(addresses) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc.TrainingServiceStub(channel).ListTrainings(pb.ListTrainingsRequest(), timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert addresses.replace(",", ", ") in (caught.value.details() or "")


def test_each_address_of_a_list_is_checked() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        open_channel("127.0.0.1:50051,nowhere")


@asynccontextmanager
async def named_servers(hosts: Sequence[str], security: SecurityConfig) -> AsyncIterator[dict[str, FleetServer]]:
    """One server on each address of this machine, all on one port."""
    port = free_port()
    found: dict[str, FleetServer] = {}
    async with AsyncExitStack() as stack:
        for host in hosts:
            trainings: Any = Trainings(host)  # type: ignore[abstract]
            listen = ListenConfig(host=host, port=port, drain_seconds=0)
            service = Service("parlmesh.v1.TrainingService", trainings.register)
            found[host] = FleetServer(listen=listen, security=security, services=[service])
            await stack.enter_async_context(found[host])
        yield found


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """DNS answers by name."""
    known: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host not in known:
            return real(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(leader_discovery, "_LOOK_UP_SECONDS", 0.05)
    return known


@pytest.mark.parametrize("secure", [False, True])
async def test_of_all_addresses_of_a_name_the_one_that_serves_is_called(
    names: dict[str, list[str]], secure: bool, tmp_path: Path
) -> None:
    """Under TLS each server proves the name, whatever its address. Servers join the name and leave it."""
    server, client = SecurityConfig(), SecurityConfig()
    if secure:
        write_authority(tmp_path, name="ca", days=1, force=False)
        write_certificate(tmp_path, "server", role=None, hosts=["scheduler.test"], days=1, force=False)
        ca = tmp_path / "ca.crt"
        token, _ = write_token(tmp_path, "reader", role_named("reader"), force=False)
        server = SecurityConfig(
            ca=ca,
            certificate=tmp_path / "server.crt",
            key=tmp_path / "server.key",
            tokens=tmp_path / TOKENS_FILE,
        )
        client = SecurityConfig(ca=ca, token_file=token)
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    names["scheduler.test"] = hosts[:2]
    async with named_servers(hosts, server) as servers:
        address = f"dns:scheduler.test:{servers[hosts[0]].port}"
        servers[hosts[1]].set_serving(True)
        async with open_channel(address, client) as channel:
            stub: Any = rpc.TrainingServiceStub(channel)

            assert isinstance(channel, leader_discovery.LeaderChannel)

            async def answered_by(host: str) -> None:
                async with asyncio.timeout(SECONDS):
                    while await who(stub) != host:
                        pass

            await answered_by(hosts[1])
            names["scheduler.test"] = hosts[1:]
            servers[hosts[2]].set_serving(True)
            servers[hosts[1]].set_serving(False)
            await answered_by(hosts[2])
            # It has left the name and is down: nobody waits for it.
            await servers[hosts[0]].drain()
            await wait_until_async(lambda: len(channel._channels) == 2, SECONDS)
            await answered_by(hosts[2])


async def test_an_unknown_name_is_waited_for_and_reported(names: dict[str, list[str]]) -> None:
    names["scheduler.test"] = []
    async with open_channel("dns:scheduler.test:50051") as channel:
        stub: Any = rpc.TrainingServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListTrainings(pb.ListTrainingsRequest(), timeout=0.2)
    assert caught.value.details() == "none of dns:scheduler.test:50051 leads; waited 0.2 s"
