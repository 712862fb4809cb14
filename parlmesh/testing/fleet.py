"""Fakes of the scheduler and the learner for tests of actors: real servicers that a test controls."""

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
import numpy as np

from parlmesh.errors import FleetError
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.rpc import message_limit_metadata, status_from_error
from parlmesh.rpc.server import Service, opens_by_itself
from parlmesh.rpc.task_group import first_of
from parlmesh.types import ActionSpec, Array
from parlmesh.v1 import experience_service_pb2 as experience_pb
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceServicer, add_ExperienceServiceServicer_to_server
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceServicer, add_FleetServiceServicer_to_server
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceServicer, add_PolicyServiceServicer_to_server
from parlmesh.v1.task_pb2 import Priority
from parlmesh.wire import payload_to_proto

_DEADLINE_SECONDS = 60.0
_CHUNK_BYTES = 64 << 10
_Context = grpc.aio.ServicerContext[Any, Any]


class FakeStream:
    """One actor's stream: its messages, and a way to answer."""

    def __init__(self, hello: fleet_pb.Hello) -> None:
        self.hello = hello
        self.credits = 0
        self.leaving = False
        self.ended = False
        self.results: dict[int, fleet_pb.TaskResult] = {}
        self.heartbeats: list[fleet_pb.Heartbeat] = []
        self.requests: list[fleet_pb.ConnectRequest] = []
        self.outbound: asyncio.Queue[fleet_pb.ConnectResponse | FleetError | None] = asyncio.Queue()
        self._changed = asyncio.Condition()

    async def take(self, request: fleet_pb.ConnectRequest) -> None:
        """Records one message of the actor."""
        async with self._changed:
            self.requests.append(request)
            self.credits += request.credits
            self.leaving = self.leaving or request.leaving
            self.results.update({result.lease.lease_id: result for result in request.results})
            if request.HasField("heartbeat"):
                self.heartbeats.append(request.heartbeat)
            self._changed.notify_all()

    def send(self, response: fleet_pb.ConnectResponse) -> None:
        """Sends a message to the actor."""
        self.credits -= len(response.assignments)
        self.outbound.put_nowait(response)

    def welcome(self, leases: Iterable[fleet_pb.Lease] = (), *, heartbeat_seconds: float = 0.05) -> None:
        """Accepts the actor; `leases` are those of its hello that are still valid."""
        welcome = fleet_pb.Welcome(leases=leases)
        welcome.heartbeat_interval.FromNanoseconds(int(heartbeat_seconds * 1e9))
        self.send(fleet_pb.ConnectResponse(welcome=welcome))

    def acknowledge(self, results: Iterable[fleet_pb.TaskResult]) -> None:
        """Acknowledges results."""
        self.send(fleet_pb.ConnectResponse(acknowledged=[result.lease for result in results]))

    def end(self, error: FleetError | None = None) -> None:
        """Ends the stream, with an error if one is given."""
        self.outbound.put_nowait(error)

    def answered(self) -> bool:
        """Whether the actor took the welcome, or left."""
        return self.credits > 0 or self.ended

    async def close(self) -> None:
        """Records that the actor has left."""
        async with self._changed:
            self.ended = True
            self._changed.notify_all()
        self.end()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Waits for messages of the actor until the predicate holds."""
        async with asyncio.timeout(_DEADLINE_SECONDS), self._changed:
            await self._changed.wait_for(predicate)

    async def result(self, lease_id: int) -> fleet_pb.TaskResult:
        """Waits for the result of one lease."""
        await self.until(lambda: lease_id in self.results)
        return self.results[lease_id]


class FakeScheduler(FleetServiceServicer):
    """Hands every stream to the test. Makes leases, decides nothing."""

    def __init__(self) -> None:
        self._streams: asyncio.Queue[FakeStream] = asyncio.Queue()
        self._lease_ids = itertools.count(1)

    @property
    def service(self) -> Service:
        """To be served."""
        return Service("parlmesh.v1.FleetService", lambda server: add_FleetServiceServicer_to_server(self, server))

    async def stream(self) -> FakeStream:
        """The next stream an actor opens."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            return await self._streams.get()

    async def welcomed(self) -> FakeStream:
        """The next stream, accepted with all its leases and after its first credits; a welcome may come too late for an
        actor on a busy machine, which then opens another."""
        while True:
            stream = await self.stream()
            stream.welcome(stream.hello.leases)
            await stream.until(stream.answered)
            if stream.credits > 0:
                return stream

    def assignment(
        self,
        kind: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        tensors: Mapping[str, Array] | None = None,
        run_seconds: float | None = None,
        priority: Priority.ValueType = Priority.PRIORITY_NORMAL,
    ) -> fleet_pb.Assignment:
        """A task under a fresh lease."""
        lease_id = next(self._lease_ids)
        lease = fleet_pb.Lease(task_id=f"task-{lease_id}", lease_id=lease_id, attempt=1)
        assignment = fleet_pb.Assignment(lease=lease, kind=kind, priority=priority)
        if parameters or tensors:
            assignment.payload.CopyFrom(payload_to_proto(parameters or {}, tensors))
        if run_seconds is not None:
            assignment.run_timeout.FromNanoseconds(int(run_seconds * 1e9))
        return assignment

    async def Connect(
        self, request_iterator: AsyncIterator[fleet_pb.ConnectRequest], context: _Context
    ) -> AsyncIterator[fleet_pb.ConnectResponse]:
        """Serves one stream until the test or the actor ends it."""
        first = await anext(request_iterator)
        stream = FakeStream(first.hello)
        self._streams.put_nowait(stream)
        reader = asyncio.create_task(_read(request_iterator, stream))
        try:
            while isinstance(item := await stream.outbound.get(), fleet_pb.ConnectResponse):
                yield item
        finally:
            reader.cancel()
        if item is not None:
            raise item


async def _read(requests: AsyncIterator[fleet_pb.ConnectRequest], stream: FakeStream) -> None:
    try:
        async for request in requests:
            await stream.take(request)
    finally:
        await stream.close()


class FakeLearner(PolicyServiceServicer, ExperienceServiceServicer):
    """Serves published blobs and answers uploads with receipts; breaks streams on command."""

    def __init__(self) -> None:
        self.trajectories: list[experience_pb.Trajectory] = []
        self.fetches: list[policy_pb.GetPolicyRequest] = []
        self.refusal: Callable[[experience_pb.Trajectory], FleetError | None] = lambda trajectory: None
        """Why a trajectory is refused; None accepts it."""
        self.silent = False
        """Accept trajectories without sending receipts."""
        self.together = 1
        """Number of accepted trajectories that share one receipt."""
        self.credits = 8
        self.run_uids: dict[str, str] = {}
        """Uids by run id; a missing one is unknown."""
        self.message_bytes = 0
        """Sent to uploaders; 0 acts like an older learner, which sends nothing."""
        self.upload_streams = 0
        self.damage: Callable[[bytes], bytes] = lambda data: data
        """Applied to the bytes of a policy before they are sent."""
        self._policies: dict[str, dict[int, bytes]] = {}
        self._changed = asyncio.Condition()
        self._broken = asyncio.Event()

    @property
    def services(self) -> list[Service]:
        """To be served."""
        return [
            Service("parlmesh.v1.PolicyService", lambda server: add_PolicyServiceServicer_to_server(self, server)),
            Service(
                "parlmesh.v1.ExperienceService", lambda server: add_ExperienceServiceServicer_to_server(self, server)
            ),
        ]

    async def publish(self, run_id: str, version: int, data: bytes) -> None:
        """Makes a version the newest, even when it is lower than the last."""
        async with self._changed:
            versions = self._policies.setdefault(run_id, {})
            versions.pop(version, None)
            versions[version] = data
            self._changed.notify_all()

    async def publish_anew(self, run_id: str, version: int, data: bytes) -> None:
        """Acts like a restarted learner: current watchers are not told."""
        self._policies[run_id] = {version: data}

    def break_streams(self) -> None:
        """Ends every open stream as a dying process would."""
        self._broken.set()
        self._broken = asyncio.Event()

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Waits for uploads or fetches until the predicate holds."""
        async with asyncio.timeout(_DEADLINE_SECONDS), self._changed:
            await self._changed.wait_for(predicate)

    async def GetPolicy(
        self, request: policy_pb.GetPolicyRequest, context: _Context
    ) -> AsyncIterator[policy_pb.GetPolicyResponse]:
        """The newest version, or the one asked for."""
        async with self._changed:
            self.fetches.append(request)
            self._changed.notify_all()
        versions = self._policies.get(request.run_id, {})
        version = request.version or next(reversed(versions), 0)
        if version not in versions:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no version {version} of run {request.run_id}")
        if version == request.have_version:
            yield policy_pb.GetPolicyResponse(not_modified=True)
            return
        header = self._header(request.run_id, version, versions[version])
        data = self.damage(versions[version])
        for start in range(0, max(1, len(data)), _CHUNK_BYTES):
            first = start == 0
            chunk = data[start : start + _CHUNK_BYTES]
            yield policy_pb.GetPolicyResponse(header=header if first else None, data=chunk)

    async def WatchPolicy(
        self, request: policy_pb.WatchPolicyRequest, context: _Context
    ) -> AsyncIterator[policy_pb.WatchPolicyResponse]:
        """Every new version, starting with the current one."""
        broken = self._broken
        told: tuple[int, bytes] | None = None
        while True:
            await first_of(self._other_than(request.run_id, told), broken.wait())
            if broken.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test wishes")
            told = self._newest(request.run_id)
            assert told is not None
            yield policy_pb.WatchPolicyResponse(header=self._header(request.run_id, *told))

    @opens_by_itself
    async def UploadTrajectories(
        self, request_iterator: AsyncIterator[experience_pb.UploadTrajectoriesRequest], context: _Context
    ) -> AsyncIterator[experience_pb.UploadTrajectoriesResponse]:
        """Keeps every trajectory and answers in order."""
        self.upload_streams += 1
        terms = message_limit_metadata(self.message_bytes) if self.message_bytes else ()
        await context.send_initial_metadata(terms)
        broken = self._broken
        requests = aiter(request_iterator)
        accepted: list[int] = []
        while True:
            request = await first_of(anext(requests, None), _nothing_after(broken))
            if broken.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test wishes")
            if not isinstance(request, experience_pb.UploadTrajectoriesRequest):
                return
            async with self._changed:
                self.trajectories.append(request.trajectory)
                self._changed.notify_all()
            refusal = self.refusal(request.trajectory)
            if refusal is None and len(accepted) + 1 < self.together:
                accepted.append(request.trajectory.sequence)
            elif not self.silent:
                yield experience_pb.UploadTrajectoriesResponse(
                    sequence=request.trajectory.sequence,
                    status=status_from_error(refusal) if refusal is not None else None,
                    credits=self.credits,
                    also_accepted=accepted,
                )
                accepted.clear()

    def _header(self, run_id: str, version: int, data: bytes) -> policy_pb.PolicyHeader:
        digest, uid = hashlib.sha256(data).digest(), self.run_uids.get(run_id, "")
        return policy_pb.PolicyHeader(run_id=run_id, version=version, digest=digest, size_bytes=len(data), run_uid=uid)

    def _newest(self, run_id: str) -> tuple[int, bytes] | None:
        return next(reversed(self._policies.get(run_id, {}).items()), None)

    async def _other_than(self, run_id: str, told: tuple[int, bytes] | None) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._newest(run_id) != told)


def random_policy(seed: int, *, observation_size: int = 4, action_count: int = 2) -> bytes:
    """A small policy as the learner would serve it, by default for CartPole."""
    spec = PolicySpec((observation_size,), ActionSpec("discrete", (action_count,)), hidden=(8,))
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(spec.layer_sizes)):
        weights[f"policy.{layer}.weight"] = rng.normal(size=(outputs, inputs)).astype(np.float32)
        weights[f"policy.{layer}.bias"] = np.zeros(outputs, np.float32)
    return pack_policy(spec, weights)


async def _nothing_after(event: asyncio.Event) -> None:
    await event.wait()
