"""A federation whose nodes are the test: the updates go over real gRPC, the nodes' tasks are read from the rounds."""

import asyncio
import contextlib
import hashlib
import resource
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import numpy as np
import pytest

from learner.config import FederationsConfig
from learner.federation.connected_nodes import NodesFound
from learner.federation.federations import Federations
from learner.federation.rules.records import FederationState
from learner.federation.servicer import FederationServicer
from parlmesh.config import ListenConfig
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.security import SecurityConfig
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import scheduler_service_pb2 as scheduler_pb
from parlmesh.v1 import task_pb2, tensor_pb2
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server

NOWHERE = "127.0.0.1:1"
SIZE = 20


class Bench:
    """A served directory of federations and a stub to talk to it."""

    def __init__(self, federations, stub):
        self.federations = federations
        self.stub = stub

    async def start(self, nodes=("a", "b", "c"), federation_id="f", **values):
        async def list_nodes(_):
            return NodesFound(tuple(nodes))

        self.federations._list_nodes = list_nodes
        values = {
            "task": "drift",
            "settings": {"parameters": SIZE},
            "rounds": 2,
            "evaluation": {"interval_rounds": 0},
            **values,
        }
        return await self.federations.start(federation_id, values)

    async def until(self, condition):
        async with asyncio.timeout(60.0):
            while not condition():  # noqa: ASYNC110 - a condition of many things, each with its own event or none
                await asyncio.sleep(0.005)

    async def finish(self, federation, vector):
        """Answers whatever is asked, again and again while the learner cannot take it."""
        core = federation.core
        async with asyncio.timeout(60.0):
            while core.state is FederationState.RUNNING:
                for node, assignment in list(core.assignments.items()):
                    if assignment.nonce not in core.answers and core.phase == "collecting":
                        with contextlib.suppress(grpc.aio.AioRpcError):
                            await self.submit(assignment, vector(node, assignment.base_version))
                await asyncio.sleep(0.005)

    async def assignments(self, federation, number):
        await self.until(lambda: federation.core.round >= number and len(federation.core.assignments) > 0)
        return dict(federation.core.assignments)

    async def submit(self, assignment, vector, *, chunk=16, **changes):
        return await self.stub.SubmitUpdate(update_messages(assignment, vector, chunk=chunk, **changes), timeout=60.0)


def update_messages(assignment, vector, *, chunk=16, encoded=None, **changes):
    data = np.asarray(vector, "<f4").tobytes() if encoded is None else encoded
    header = pb.UpdateHeader(
        federation_id="f",
        round=assignment.round,
        node_id=assignment.node_id,
        base_version=assignment.base_version,
        nonce=bytes.fromhex(assignment.nonce),
        samples=10,
        digest=hashlib.sha256(data).digest(),
        size_bytes=len(data),
        tensors=[tensor_pb2.Tensor(name="weight", dtype=tensor_pb2.DATA_TYPE_FLOAT32, shape=[SIZE])],
    )
    for name, value in changes.items():
        if name == "tensors":
            del header.tensors[:]
            header.tensors.extend(value)
        elif name == "metrics":
            header.metrics.CopyFrom(value)
        else:
            setattr(header, name, value)
    yield pb.SubmitUpdateRequest(header=header)
    for start in range(0, len(data), chunk):
        yield pb.SubmitUpdateRequest(data=data[start : start + chunk])


@asynccontextmanager
async def serving(folder, scheduler=NOWHERE):
    channel = open_channel(scheduler)
    federations = Federations(folder, channel, FederationsConfig())
    server = FleetServer(
        listen=ListenConfig(port=0, drain_seconds=0.0),
        security=SecurityConfig(),
        services=[FederationServicer(federations).service],
    )
    async with federations:
        port = await server.start()
        client = open_channel(f"127.0.0.1:{port}")
        try:
            yield Bench(federations, FederationServiceStub(client))
        finally:
            await client.close()
            await server.drain()
    await channel.close()


# The generated class is abstract for mypy.
_Servicer: Any = SchedulerServiceServicer


class Scheduler(_Servicer):  # type: ignore[misc]
    """Takes tasks and never runs them; `refusal` is raised instead while there is one."""

    def __init__(self):
        self.refusal = None
        self.submits = 0
        self.tasks = {}
        self.cancelled = set()
        self.outcomes: asyncio.Queue[task_pb2.Outcome] = asyncio.Queue()
        # In pages of ten.
        self.actors = []

    @property
    def service(self):
        return Service(
            "parlmesh.v1.SchedulerService", lambda server: add_SchedulerServiceServicer_to_server(self, server)
        )

    async def SubmitTasks(self, request, context):
        self.submits += 1
        if self.refusal is not None:
            raise self.refusal
        self.tasks.update((task.task_id, task) for task in request.tasks)
        return scheduler_pb.SubmitTasksResponse()

    async def ListTasks(self, request, context):
        if self.refusal is not None:
            raise self.refusal
        return scheduler_pb.ListTasksResponse()

    async def ListActors(self, request, context):
        if self.refusal is not None:
            raise self.refusal
        begin = int(request.page_token or 0)
        token = str(begin + 10) if begin + 10 < len(self.actors) else ""
        return scheduler_pb.ListActorsResponse(actors=self.actors[begin : begin + 10], next_page_token=token)

    async def CancelTasks(self, request, context):
        self.cancelled.update(request.task_ids)
        return scheduler_pb.CancelTasksResponse()

    async def WatchTasks(self, request, context):
        while True:
            yield scheduler_pb.WatchTasksResponse(outcomes=[await self.outcomes.get()])


@contextlib.contextmanager
def files_no_longer_than(size):
    """A disk that is full: what does not fit is written short, then refused (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
async def bench(tmp_path):
    async with serving(tmp_path / "federations") as found:
        yield found
