"""A channel to several servers: calls go to the one that serves, and leave one that does so no more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.config import ListenConfig
from parlmesh.errors import ConfigError, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.security import SecurityConfig
from parlmesh.testing import free_port
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1 import training_service_pb2_grpc as rpc

SECONDS = 60.0


class Trainings(rpc.TrainingServiceServicer):
    """Says its name, or that it does not lead; watches hold on."""

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
    """As every caller asks: again when the call was under way while the leader changed."""
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
