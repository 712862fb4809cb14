"""One session, handlers that wait until they are told, and the scheduler's side of the ledger."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.handlers.demo import Echo, Fail, Noop, Sleep
from actor.metrics import ActorMetrics
from actor.session.actor_identity import ActorIdentity
from actor.session.session import ActorSession
from parlmesh.blob_transfer import Exchange
from parlmesh.handlers import Context, Handler, RunsIn
from parlmesh.testing import wait_until_async
from parlmesh.testing.fleet import FakeScheduler
from parlmesh.v1.fleet_service_pb2 import Assignment, ConnectRequest, ConnectResponse, TaskResult

_IDENTITY = ActorIdentity("node", "node-1", 42)


class Gate:
    """Runs until it is opened; notes the order in which its tasks started."""

    kind = "gate"
    runs_in = RunsIn.LOOP

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.started: list[str] = []
        self.cancelled: list[str] = []

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        self.started.append(context.task_id)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(context.task_id)
            raise
        return {"slot": context.slot}


class Keeps:
    """Has something to drop at a reset."""

    kind = "keeps"
    runs_in = RunsIn.INLINE

    def __init__(self) -> None:
        self.resets = 0

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        return {}

    def reset(self) -> None:
        self.resets += 1


class Fleet:
    """One session and the scheduler's side of its ledger."""

    def __init__(self, session: ActorSession, gate: Gate, keeps: Keeps, metrics: ActorMetrics) -> None:
        self.session = session
        self.gate = gate
        self.keeps = keeps
        self.metrics = metrics
        self.cache_resets = 0
        self.scheduler = FakeScheduler()
        self.results: dict[int, TaskResult] = {}

    def assign(self, kind: str, parameters: dict[str, Any] | None = None, **options: Any) -> Assignment:
        assignment = self.scheduler.assignment(kind, parameters, **options)
        self.session.receive(ConnectResponse(assignments=[assignment]))
        return assignment

    def flush(self) -> ConnectRequest:
        request = self.session.next_request() or ConnectRequest()
        self.results.update({result.lease.lease_id: result for result in request.results})
        return request

    async def result(self, assignment: Assignment) -> TaskResult:
        lease_id = assignment.lease.lease_id

        def come() -> bool:
            self.flush()
            return lease_id in self.results

        await wait_until_async(come, 60.0)
        return self.results[lease_id]


@asynccontextmanager
async def fleet_of(slots: int = 1, extra: dict[str, Handler] | None = None, **limits: Any) -> AsyncIterator[Fleet]:
    gate, keeps, metrics = Gate(), Keeps(), ActorMetrics(CollectorRegistry())
    handlers: list[Handler] = [Noop(), Echo(), Fail(), Sleep(), gate, keeps]
    session = ActorSession(
        _IDENTITY,
        {handler.kind: handler for handler in handlers} | (extra or {}),
        slots=slots,
        labels={"zone": "a"},
        limits=LimitsConfig(**{"prefetch": 4, "stop_seconds": 0.05} | limits),
        metrics=metrics,
        policy_version=lambda: 9,
        exchange=Exchange(None, "", cache_bytes=0, call_seconds=1.0, keeps_results=True),
        on_reset=lambda: setattr(fleet, "cache_resets", fleet.cache_resets + 1),
    )
    fleet = Fleet(session, gate, keeps, metrics)
    async with session:
        yield fleet
