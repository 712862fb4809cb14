"""Clients that keep books: one that speaks gRPC itself, one that uses the SDK, and a reader that does not read."""

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from parlmesh.client import ClientConfig, OutcomeState, PARLController, TaskRequest
from parlmesh.client.task_request import Priority
from parlmesh.errors import FleetError
from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.testing.history import Cancelled, Delivered, Journal, Submitted, now
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.wire import payload_from_proto, payload_to_proto

_CALL_SECONDS = 5.0
_IN_FLIGHT = 80
_PATIENCE_SECONDS = 600.0
_LOOK_SECONDS = 60.0
_ASKED_AT_ONCE = 16
_UNANSWERED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
)
_FINAL = {
    task_pb2.TASK_STATE_SUCCEEDED: "succeeded",
    task_pb2.TASK_STATE_FAILED: "failed",
    task_pb2.TASK_STATE_CANCELLED: "cancelled",
    task_pb2.TASK_STATE_QUARANTINED: "quarantined",
}
_KNOWN_ENDS = frozenset(_FINAL.values())


class Work:
    """Tasks of every kind, by a seed."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self.rng = random.Random(f"{name}-{seed}")  # noqa: S311 - must replay
        self._count = 0

    def next(self) -> tuple[str, str, dict[str, Any]]:
        """An id, a kind and its parameters."""
        self._count += 1
        rng = self.rng
        kind = rng.choices(("mark_inline", "mark_loop", "mark_thread", "mark_process"), (4, 3, 3, 1))[0]
        seconds = rng.choice((0.0, rng.uniform(0.0, 0.1), rng.uniform(0.1, 1.0), rng.uniform(1.0, 4.0)))
        parameters: dict[str, Any] = {"seconds": round(seconds, 3), "bytes": rng.choice((0, 0, 1_000))}
        if rng.random() < 0.1:
            parameters["fail_attempts"] = 1
        return f"{self._name}-{self._count}", kind, parameters


class RawClient:
    """Submits, follows and cancels over gRPC; every answer is recorded."""

    def __init__(self, name: str, address: str, journal: Journal, seed: int) -> None:
        self._name = name
        self._address = address
        self._journal = journal
        self._work = Work(name, seed)
        self.waiting: set[str] = set()
        self.accepted = 0
        self.stopping = False

    async def run(self) -> None:
        """Runs until `stopping` is set and everything accepted has ended; the caller's deadline bounds it."""
        async with open_channel(self._address) as channel:
            self._stub: Any = SchedulerServiceStub(channel)
            watching = asyncio.create_task(self._watch())
            cancelling = asyncio.create_task(self._cancel_some())
            try:
                while not self.stopping:
                    await self._submit(self._work.rng.randint(1, 20))
                    await asyncio.sleep(self._work.rng.uniform(0.02, 0.3))
                    await wait_until_async(lambda: self.stopping or len(self.waiting) < _IN_FLIGHT, _PATIENCE_SECONDS)
                await wait_until_async(lambda: not self.waiting, _PATIENCE_SECONDS)
            finally:
                for task in (watching, cancelling):
                    task.cancel()
                await asyncio.gather(watching, cancelling, return_exceptions=True)

    async def _submit(self, count: int) -> None:
        specs = [self._spec(*self._work.next()) for _ in range(count)]
        ids = tuple(spec.task_id for spec in specs)
        request, start, unanswered = pb.SubmitTasksRequest(tasks=specs), now(), False
        while True:
            try:
                await self._stub.SubmitTasks(request, timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() in _UNANSWERED:
                    # The same ids again: if the request was accepted, nothing happens twice.
                    unanswered = True
                    await asyncio.sleep(0.1)
                    continue
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    await asyncio.sleep(0.5)
                    continue
                self._journal.add(Submitted(ids, start, now(), "unknown" if unanswered else "refused"))
                return
            self._journal.add(Submitted(ids, start, now(), "accepted"))
            self.accepted += count
            self.waiting.update(ids)
            if unanswered:
                # Outcomes may have come before it was known that the tasks were accepted.
                await self._ask(ids)
            return

    def _spec(self, task_id: str, kind: str, parameters: dict[str, Any]) -> task_pb2.TaskSpec:
        return task_pb2.TaskSpec(
            task_id=task_id, kind=kind, payload=payload_to_proto(parameters), submitter=self._name, max_attempts=4
        )

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            asking: asyncio.Task[None] | None = None
            while True:
                call = self._stub.WatchTasks(pb.WatchTasksRequest(submitter=self._name))
                try:
                    await call.initial_metadata()
                    # Concurrently with the reading, because outcomes that the stream has brought are lost with it.
                    if asking is None or asking.done():
                        asking = group.create_task(self._ask(tuple(self.waiting)))
                    await self._read(call)
                except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
                    # A silent stream may be a link that holds messages back, so it is reopened every few seconds.
                    pass
                finally:
                    call.cancel()
                await asyncio.sleep(0.1)

    async def _read(self, call: Any) -> None:
        while isinstance(response := await asyncio.wait_for(call.read(), _CALL_SECONDS), pb.WatchTasksResponse):
            for outcome in response.outcomes:
                self._deliver(outcome)

    async def _ask(self, task_ids: Iterable[str]) -> None:
        """Asks for all, several at once. One at a time, the last would never be asked for when answers are slow and the
        scheduler is often down."""
        turn = asyncio.Semaphore(_ASKED_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for task_id in task_ids:
                group.create_task(self._ask_one(task_id, turn))

    async def _ask_one(self, task_id: str, turn: asyncio.Semaphore) -> None:
        async with turn:
            try:
                answer = await self._stub.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND and task_id in self.waiting:
                    self.waiting.discard(task_id)
                    self._journal.add(Delivered(task_id, now(), "forgotten"))
                return
        if answer.task.state in _FINAL:
            self._deliver(answer.task.outcome)

    def _deliver(self, outcome: task_pb2.Outcome) -> None:
        state, token = _FINAL[outcome.state], ""
        if state == "succeeded":
            token = str(payload_from_proto(outcome.result)[0]["token"])
        self.waiting.discard(outcome.task_id)
        self._journal.add(Delivered(outcome.task_id, now(), state, token))

    async def _cancel_some(self) -> None:
        while True:
            await asyncio.sleep(self._work.rng.uniform(0.2, 1.5))
            if not self.waiting or self.stopping:
                continue
            chosen = self._work.rng.sample(sorted(self.waiting), min(3, len(self.waiting)))
            try:
                answer = await self._stub.CancelTasks(pb.CancelTasksRequest(task_ids=chosen), timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError:
                self._journal.add(Cancelled(tuple(chosen), now(), answered=False))
                continue
            self._journal.add(Cancelled(tuple(answer.cancelled_task_ids), now()))


class SdkClient:
    """Runs crowds of tasks through PARLController; an outcome that never comes is a finding."""

    def __init__(self, name: str, address: str, journal: Journal, seed: int) -> None:
        self._name = name
        self._address = address
        self._journal = journal
        self._work = Work(name, seed)
        self.accepted = 0
        self.reconnects = 0
        self.findings: list[str] = []
        self.stopping = False

    async def run(self) -> None:
        config = ClientConfig(submitter=self._name, connect_seconds=60.0)
        async with PARLController(self._address, config=config) as controller:
            while not self.stopping:
                await self._crowd(controller, self._work.rng.randint(5, 40))
            self.reconnects = (await controller.get_statistics()).client.reconnects

    async def _crowd(self, controller: PARLController, count: int) -> None:
        requests = []
        for _ in range(count):
            task_id, kind, parameters = self._work.next()
            priority = self._work.rng.choice((Priority.LOW, Priority.NORMAL, Priority.HIGH))
            requests.append(TaskRequest(kind, parameters, task_id=task_id, max_attempts=4, priority=priority))
        start = now()
        try:
            outcomes = await controller.execute_parallel(requests, limit=30, timeout=_PATIENCE_SECONDS)
        except FleetError as error:
            ids = tuple(request.task_id for request in requests)
            self._journal.add(Submitted(ids, start, now(), f"unknown: {error.reason}"))
            self.findings.append(f"a crowd of {count} tasks failed with {error!r}")
            # A connection that has ended for good fails at once, every time.
            self.stopping = True
            return
        accepted = tuple(outcome.task_id for outcome in outcomes if outcome.state != "refused")
        self._journal.add(Submitted(accepted, start, now(), "accepted"))
        self.accepted += len(accepted)
        refused = tuple(outcome.task_id for outcome in outcomes if outcome.state == "refused")
        if refused:
            self._journal.add(Submitted(refused, start, now(), "refused"))
        for outcome in outcomes:
            if outcome.state is OutcomeState.ABANDONED:
                await self._look_up(controller, outcome.task_id)
            else:
                self._note(outcome)

    async def _look_up(self, controller: PARLController, task_id: str) -> None:
        """Asks the scheduler for a task that was abandoned at its deadline, and cancelled."""
        self._journal.add(Cancelled((task_id,), now(), answered=False))
        try:
            outcome = await controller.result(task_id, timeout=_LOOK_SECONDS)
        except FleetError as error:
            self.findings.append(f"{task_id} got no outcome in {_PATIENCE_SECONDS:g} s, and then {error!r}")
            return
        self._note(outcome)
        if outcome.state is not OutcomeState.CANCELLED:
            self.findings.append(f"{task_id} ended {outcome.state}, and its client was not told")

    def _note(self, outcome: Any) -> None:
        if outcome.state in _KNOWN_ENDS:
            token = str(outcome.value["token"]) if outcome.ok else ""
            self._journal.add(Delivered(outcome.task_id, now(), str(outcome.state), token))
        elif outcome.error is not None and outcome.error.reason == "OUTCOME_FORGOTTEN":
            self._journal.add(Delivered(outcome.task_id, now(), "forgotten"))


class StalledReader:
    """Follows every client's outcomes and reads none."""

    def __init__(self, address: str, submitters: Iterable[str]) -> None:
        self._address = address
        self._submitters = list(submitters)

    async def stall(self, seconds: float) -> None:
        async with open_channel(self._address) as channel:
            stub: Any = SchedulerServiceStub(channel)
            calls = [stub.WatchTasks(pb.WatchTasksRequest(submitter=name)) for name in self._submitters]
            await asyncio.sleep(seconds)
            for call in calls:
                call.cancel()
