"""A small fleet of real processes whose links, disks and clocks fail on command, and a client that records
everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.testing.history import Began, Delivered, Fault, History, Journal, Submitted, now
from parlmesh.testing.history_rules import Violation, check
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.wire import payload_from_proto, payload_to_proto
from tools.faults import shim
from tools.faults.fleet import ChaosFleet, Member
from tools.faults.schedule import Plan

SECONDS = 60.0
# Short leases, so that tests of their end are short.
SHORT = {"leases.heartbeat_seconds": 0.2, "leases.duration_seconds": 2.0, "leases.reconnect_seconds": 1.0}
KINDS = "[noop, mark_inline, mark_loop, mark_thread]"


class Fleet:
    """What a test does to a fleet, and what the client saw."""

    def __init__(self, processes: ChaosFleet, stub: Any, journal: Journal) -> None:
        self.processes = processes
        self.stub = stub
        self._journal = journal

    @property
    def scheduler(self) -> Member:
        return self.processes.members["scheduler"]

    def actor(self, index: int = 0) -> Member:
        return self.processes.members[f"actor-{index}"]

    async def submit(self, *task_ids: str, kind: str = "mark_loop", seconds: float = 0.0, **spec: Any) -> None:
        """Submits once, without a retry; raises the scheduler's error."""
        tasks = [
            task_pb2.TaskSpec(
                task_id=task_id, kind=kind, payload=payload_to_proto({"seconds": seconds}), submitter="test", **spec
            )
            for task_id in task_ids
        ]
        start = now()
        await self.stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=SECONDS)
        self._journal.add(Submitted(task_ids, start, now(), "accepted"))

    async def outcomes(self, *task_ids: str, seconds: float = SECONDS) -> dict[str, task_pb2.Outcome]:
        """Waits for all of them, whatever breaks meanwhile."""
        found: dict[str, task_pb2.Outcome] = {}

        async def all_there() -> bool:
            with contextlib.suppress(grpc.aio.AioRpcError):
                for task_id in set(task_ids) - found.keys():
                    task = (await self.stub.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5.0)).task
                    if task.HasField("outcome"):
                        found[task_id] = task.outcome
                        self._deliver(task.outcome)
            return len(found) == len(task_ids)

        await wait_until_async(all_there, seconds)
        return found

    async def state_of(self, task_id: str) -> task_pb2.Task:
        answer = await self.stub.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=SECONDS, wait_for_ready=True)
        task: task_pb2.Task = answer.task
        return task

    async def statistics(self) -> pb.GetStatisticsResponse:
        answer: pb.GetStatisticsResponse = await self.stub.GetStatistics(
            pb.GetStatisticsRequest(), timeout=SECONDS, wait_for_ready=True
        )
        return answer

    def begun(self, *task_ids: str) -> list[Began]:
        """Attempts so far, in order."""
        wanted = set(task_ids)
        found = [each for each in self._history().of(Began) if not wanted or each.task_id in wanted]
        return sorted(found, key=lambda each: each.at)

    async def until_begun(self, *task_ids: str, count: int | None = None) -> list[Began]:
        """The attempts, once there are this many; by default one per task."""
        wanted = count or len(task_ids)
        await wait_until_async(lambda: len(self.begun(*task_ids)) >= wanted, SECONDS)
        return self.begun(*task_ids)

    def fault(self, target: str, kind: str, start: float, lingers: float = 0.0) -> None:
        """Records that a fault took place from `start` until now."""
        self._journal.add(Fault(target, kind, start, now(), lingers))

    def violations(self) -> list[Violation]:
        return check(self._history())

    def _deliver(self, outcome: task_pb2.Outcome) -> None:
        state = task_pb2.TaskState.Name(outcome.state).removeprefix("TASK_STATE_").lower()
        token = payload_from_proto(outcome.result)[0].get("token", "") if state == "succeeded" else ""
        self._journal.add(Delivered(outcome.task_id, now(), state, str(token)))

    def _history(self) -> History:
        return History.read(self.processes.history.glob("*.jsonl"))


Open = Callable[..., Any]


@pytest.fixture
def open_fleet(tmp_path: Path) -> Open:
    """`async with open_fleet(slots=[2, 1], **settings of the scheduler)`."""
    if not shim.available():
        pytest.skip("there is no gcc to compile the shim with")

    @contextlib.asynccontextmanager
    async def opened(slots: Sequence[int] = (1,), learner: bool = False, **settings: Any) -> AsyncIterator[Fleet]:
        actors = tuple({"slots": each, "kinds": KINDS} for each in slots)
        plan = Plan(0, 0.0, {**SHORT, **settings}, actors, ())
        async with (
            ChaosFleet(plan, tmp_path / "fleet", learner=learner) as processes,
            open_channel(processes.client_address) as channel,
        ):
            with Journal(processes.history / "client.jsonl") as journal:
                yield Fleet(processes, SchedulerServiceStub(channel), journal)
                await asyncio.sleep(0)

    return opened
