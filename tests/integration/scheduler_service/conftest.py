"""A whole scheduler in this process, a client of it, and an actor that the test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.config import ListenConfig
from parlmesh.errors import FleetError
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import wait_until_async
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler.build import Scheduler
from scheduler.config import SchedulerConfig
from scheduler.simulation.journal_replay import store_differences

SECONDS = 60.0


class RemoteActor:
    """An actor that the test controls: it holds its assignments until told to answer."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = FleetServiceStub(channel)
        self.held: list[fleet_pb.Assignment] = []
        self.revoked: list[str] = []
        self.acknowledged: list[str] = []
        self.commands: list[int] = []
        self.welcome = fleet_pb.Welcome()
        self.error: FleetError | None = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def connect(
        self, actor_id: str = "a", *, credits: int = 1, leases: Any = (), results: Any = (), **hello: Any
    ) -> None:
        details = {"kinds": ["noop"], "slots": 1, "incarnation": 1, "node_id": "node", **hello}
        self._call = self._stub.Connect()
        await self.send(
            hello=fleet_pb.Hello(actor_id=actor_id, leases=leases, **details), credits=credits, results=results
        )
        response = await asyncio.wait_for(self._call.read(), SECONDS)
        self.welcome = response.welcome
        self._take(response)
        self._reader = asyncio.create_task(self._read())

    async def send(self, **message: Any) -> None:
        await self._call.write(fleet_pb.ConnectRequest(**message))

    async def answer(self, *assignments: fleet_pb.Assignment, credits: int | None = None) -> None:
        results = [result_of(assignment) for assignment in assignments]
        await self.send(results=results, credits=len(results) if credits is None else credits)

    async def take(self, count: int = 1) -> list[fleet_pb.Assignment]:
        """Waits for this many assignments and takes them out of `held`."""
        await wait_until_async(lambda: len(self.held) >= count, SECONDS)
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=SECONDS)

    async def _read(self) -> None:
        try:
            while isinstance(response := await self._call.read(), fleet_pb.ConnectResponse):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            self.error = error_from_rpc(error)
        except asyncio.CancelledError:
            return

    def _take(self, response: fleet_pb.ConnectResponse) -> None:
        self.held += response.assignments
        self.revoked += [lease.task_id for lease in response.revoked]
        self.acknowledged += [lease.task_id for lease in response.acknowledged]
        if response.command:
            self.commands.append(response.command)


def result_of(assignment: fleet_pb.Assignment) -> fleet_pb.TaskResult:
    result = fleet_pb.TaskResult(lease=assignment.lease, ran=Duration(nanos=1_000_000))
    result.result.CopyFrom(assignment.payload)
    return result


class Client:
    """Calls with a deadline; errors are the fleet's own."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = SchedulerServiceStub(channel)

    async def call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self.stub, method)(request, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    async def submit(self, *tasks: task_pb2.TaskSpec) -> list[str]:
        return list((await self.call("SubmitTasks", pb.SubmitTasksRequest(tasks=tasks))).task_ids)

    async def get(self, task_id: str) -> task_pb2.Task:
        task: task_pb2.Task = (await self.call("GetTask", pb.GetTaskRequest(task_id=task_id))).task
        return task

    async def outcomes(self, task_ids: list[str]) -> list[task_pb2.Outcome]:
        found: list[task_pb2.Outcome] = []
        try:
            async for response in self.stub.WatchTasks(pb.WatchTasksRequest(task_ids=task_ids), timeout=SECONDS):
                found += response.outcomes
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        return found

    async def statistics(self) -> pb.GetStatisticsResponse:
        answer: pb.GetStatisticsResponse = await self.call("GetStatistics", pb.GetStatisticsRequest())
        return answer


def noop(task_id: str = "", **fields: Any) -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(task_id=task_id, kind="noop", **fields)


@asynccontextmanager
async def scheduler_of(**settings: Any) -> AsyncIterator[Scheduler]:
    """A whole scheduler in this process."""
    config = SchedulerConfig.model_validate(
        {
            "listen": ListenConfig(drain_seconds=0.2).model_dump(),
            "metrics": {"port": None},
            "store": {"kind": "memory"},
            **settings,
        }
    )
    scheduler = Scheduler(config)
    stop = asyncio.Event()
    await scheduler.start()
    ticking = asyncio.create_task(scheduler.shell.run(stop))
    try:
        yield scheduler
    finally:
        stop.set()
        await ticking
        await scheduler.stop()
    if config.store.kind == "sqlite":
        # The oracle: a restart now must change nothing.
        assert store_differences(scheduler.core, config.store.path, scheduler.shell.now()) == []


@pytest.fixture(params=["memory", "sqlite"])
async def scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scheduler]:
    store = {"kind": request.param, "path": tmp_path / "s.sqlite"}
    async with scheduler_of(store=store, queue={"max_tasks": 50, "max_payload_bytes": 1000}) as scheduler:
        yield scheduler


@pytest.fixture
async def client(scheduler: Scheduler) -> AsyncIterator[Client]:
    async with open_channel(scheduler.server.address) as channel:
        yield Client(channel)


@pytest.fixture
async def make_actor(client: Client) -> AsyncIterator[Callable[..., Awaitable[RemoteActor]]]:
    actors: list[RemoteActor] = []

    async def make(actor_id: str = "a", **hello: Any) -> RemoteActor:
        actor = RemoteActor(client.channel)
        actors.append(actor)
        await actor.connect(actor_id, **hello)
        return actor

    yield make
    for actor in actors:
        await actor.close()


Make = Callable[..., Awaitable[RemoteActor]]
