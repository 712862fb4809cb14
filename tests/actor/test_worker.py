import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.handlers import Context, Handler, RunsIn, Tail
from actor.handlers.trials import Echo, Fail, Noop, Sleep
from actor.metrics import ActorMetrics
from actor.worker import ActorIdentity, Worker
from parlmesh.testing import wait_until_async
from parlmesh.testing.fleet import FakeScheduler
from parlmesh.v1.fleet_service_pb2 import Assignment, ConnectRequest, ConnectResponse, TaskResult, Welcome
from parlmesh.v1.scheduler_service_pb2 import ActorCommand
from parlmesh.v1.task_pb2 import Priority
from parlmesh.wire import payload_from_proto

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


class Trails:
    """Leaves the slot at once and waits for the gate on the loop."""

    kind = "trails"
    runs_in = RunsIn.THREAD

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> Tail:
        return Tail(lambda: self._wait(parameters))

    async def _wait(self, parameters: dict[str, Any]) -> dict[str, Any]:
        self.waiting += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if "error" in parameters:
            raise TimeoutError(parameters["error"])
        return {"slots_busy": 0}


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
    """One worker and the scheduler's side of its ledger."""

    def __init__(self, worker: Worker, gate: Gate, keeps: Keeps, metrics: ActorMetrics) -> None:
        self.worker = worker
        self.gate = gate
        self.keeps = keeps
        self.metrics = metrics
        self.cache_resets = 0
        self.scheduler = FakeScheduler()
        self.results: dict[int, TaskResult] = {}

    def assign(self, kind: str, parameters: dict[str, Any] | None = None, **options: Any) -> Assignment:
        assignment = self.scheduler.assignment(kind, parameters, **options)
        self.worker.receive(ConnectResponse(assignments=[assignment]))
        return assignment

    def flush(self) -> ConnectRequest:
        request = self.worker.next_request() or ConnectRequest()
        self.results.update({result.lease.lease_id: result for result in request.results})
        return request

    async def result(self, assignment: Assignment) -> TaskResult:
        lease_id = assignment.lease.lease_id

        def come() -> bool:
            self.flush()
            return lease_id in self.results

        await wait_until_async(come, 5.0)
        return self.results[lease_id]


MakeFleet = Callable[..., AbstractAsyncContextManager[Fleet]]


@asynccontextmanager
async def _fleet(slots: int = 1, extra: dict[str, Handler] | None = None, **limits: Any) -> AsyncIterator[Fleet]:
    gate, keeps, metrics = Gate(), Keeps(), ActorMetrics(CollectorRegistry())
    handlers: list[Handler] = [Noop(), Echo(), Fail(), Sleep(), gate, keeps]
    worker = Worker(
        _IDENTITY,
        {handler.kind: handler for handler in handlers} | (extra or {}),
        slots=slots,
        labels={"zone": "a"},
        limits=LimitsConfig(**{"prefetch": 4, "stop_seconds": 0.05} | limits),
        metrics=metrics,
        policy_version=lambda: 9,
        on_reset=lambda: setattr(fleet, "cache_resets", fleet.cache_resets + 1),
    )
    fleet = Fleet(worker, gate, keeps, metrics)
    async with worker:
        yield fleet


async def test_hello_says_who_the_actor_is_and_what_it_can_do() -> None:
    async with _fleet(slots=2) as fleet:
        hello = fleet.worker.hello()
        assert (hello.node_id, hello.actor_id, hello.incarnation, hello.slots) == ("node", "node-1", 42, 2)
        assert list(hello.kinds) == ["echo", "fail", "gate", "keeps", "noop", "sleep"]
        assert dict(hello.labels) == {"zone": "a"}


async def test_the_first_request_grants_the_slots_and_the_prefetch() -> None:
    async with _fleet(slots=2) as fleet:
        assert fleet.flush().credits == 6
        assert fleet.worker.next_request() is None


async def test_inline_tasks_have_ended_when_the_message_is_taken_in() -> None:
    async with _fleet() as fleet:
        fleet.flush()
        assignments = [fleet.scheduler.assignment("noop") for _ in range(3)]
        fleet.worker.receive(ConnectResponse(assignments=assignments))
        request = fleet.worker.next_request()
        assert request is not None
        assert [result.lease for result in request.results] == [each.lease for each in assignments]
        assert all(result.HasField("result") for result in request.results)
        assert request.credits == 3


async def test_inline_tasks_do_not_wait_for_a_slot() -> None:
    async with _fleet() as fleet:
        fleet.assign("gate")
        assert (await fleet.result(fleet.assign("echo", {"a": 1}))).HasField("result")


async def test_echo_answers_with_what_it_was_given() -> None:
    async with _fleet() as fleet:
        result = await fleet.result(fleet.assign("echo", {"a": [1, {"b": None}]}))
        assert payload_from_proto(result.result)[0] == {"a": [1, {"b": None}]}


async def test_fail_fails_as_it_is_told() -> None:
    async with _fleet() as fleet:
        failure = (await fleet.result(fleet.assign("fail", {"message": "no", "retryable": True}))).failure
        assert (failure.reason, failure.message, failure.retryable) == ("HANDLER_ERROR", "no", True)


async def test_bad_parameters_are_named_and_not_worth_a_retry() -> None:
    async with _fleet() as fleet:
        failure = (await fleet.result(fleet.assign("sleep", {"seconds": -1}))).failure
        assert (failure.reason, failure.retryable) == ("INVALID_PARAMETERS", False)
        assert "'seconds' of sleep is -1" in failure.message
        failure = (await fleet.result(fleet.assign("sleep", {"second": 1}))).failure
        assert failure.message == "sleep has no parameter 'second'; it has: seconds"


async def test_a_kind_that_is_not_installed_fails() -> None:
    async with _fleet() as fleet:
        failure = (await fleet.result(fleet.assign("shogi"))).failure
        assert (failure.reason, failure.message) == ("UNKNOWN_KIND", "actor node-1 has no handler 'shogi'")


async def test_tasks_wait_for_a_slot_and_the_urgent_ones_go_first() -> None:
    async with _fleet() as fleet:
        first = fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 5.0)
        low = fleet.assign("gate", priority=Priority.PRIORITY_LOW)
        critical = fleet.assign("gate", priority=Priority.PRIORITY_CRITICAL)
        fleet.gate.open.set()
        await fleet.result(low)
        assert fleet.gate.started == [each.lease.task_id for each in (first, critical, low)]


async def test_as_many_tasks_run_at_once_as_there_are_slots() -> None:
    async with _fleet(slots=2) as fleet:
        assignments = [fleet.assign("gate") for _ in range(3)]
        await wait_until_async(lambda: len(fleet.gate.started) == 2, 5.0)
        assert fleet.metrics.slots_busy._value.get() == 2
        fleet.gate.open.set()
        slots = [payload_from_proto((await fleet.result(each)).result)[0]["slot"] for each in assignments]
        assert slots[:2] == [0, 1]
        assert fleet.metrics.slots_busy._value.get() == 0


async def test_a_task_past_its_time_is_stopped_and_fails() -> None:
    async with _fleet() as fleet:
        assignment = fleet.assign("gate", run_seconds=0.05)
        failure = (await fleet.result(assignment)).failure
        assert (failure.reason, failure.retryable) == ("DEADLINE_EXCEEDED", True)
        assert fleet.gate.cancelled == [assignment.lease.task_id]


async def test_a_revoked_task_is_stopped_without_a_result_and_its_slot_used_again() -> None:
    async with _fleet() as fleet:
        running, waiting, third = fleet.assign("gate"), fleet.assign("gate"), fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 5.0)
        fleet.worker.receive(ConnectResponse(revoked=[running.lease, waiting.lease]))
        fleet.gate.open.set()
        await fleet.result(third)
        assert fleet.gate.cancelled == [running.lease.task_id]
        assert fleet.gate.started == [running.lease.task_id, third.lease.task_id]
        assert fleet.results.keys() == {third.lease.lease_id}
        assert fleet.metrics.revoked._value.get() == 2


async def test_no_credit_is_given_for_a_slot_whose_task_is_still_stopping() -> None:
    class Slow:
        kind = "slow"
        runs_in = RunsIn.THREAD

        def __init__(self) -> None:
            self.started, self.release = threading.Event(), threading.Event()

        def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
            self.started.set()
            self.release.wait()
            return {}

    slow = Slow()
    async with _fleet(extra={"slow": slow}, prefetch=0, stop_seconds=5.0) as fleet:
        assert fleet.flush().credits == 1
        assignment = fleet.assign("slow")
        await wait_until_async(slow.started.is_set, 5.0)
        fleet.worker.receive(ConnectResponse(revoked=[assignment.lease]))
        assert fleet.flush().credits == 0
        slow.release.set()
        await wait_until_async(lambda: fleet.flush().credits, 5.0)


async def test_a_task_that_only_waits_leaves_its_slot_to_the_next() -> None:
    trails = Trails()
    async with _fleet(extra={"trails": trails}) as fleet:
        waiting = [fleet.assign("trails") for _ in range(3)]
        await wait_until_async(lambda: trails.waiting == 3, 5.0)
        assert fleet.metrics.slots_busy._value.get() == 0
        assert fleet.worker.hello().leases == [each.lease for each in waiting]
        trails.open.set()
        for each in waiting:
            assert (await fleet.result(each)).HasField("result")


async def test_a_task_that_waits_past_its_time_fails_and_is_stopped() -> None:
    trails = Trails()
    async with _fleet(extra={"trails": trails}) as fleet:
        failure = (await fleet.result(fleet.assign("trails", run_seconds=0.05))).failure
        assert failure.reason == "DEADLINE_EXCEEDED"
        assert trails.cancelled == 1


async def test_a_waiting_task_that_fails_or_is_revoked_ends_as_any_other() -> None:
    trails = Trails()
    async with _fleet(extra={"trails": trails}) as fleet:
        fails, revoked = fleet.assign("trails", {"error": "own"}), fleet.assign("trails")
        await wait_until_async(lambda: trails.waiting == 2, 5.0)
        fleet.worker.receive(ConnectResponse(revoked=[revoked.lease]))
        await wait_until_async(lambda: trails.cancelled == 1, 5.0)
        trails.open.set()
        failure = (await fleet.result(fails)).failure
        assert (failure.reason, failure.message) == ("HANDLER_ERROR", "TimeoutError: own")
        assert revoked.lease.lease_id not in fleet.results


async def test_an_assignment_that_comes_twice_runs_once() -> None:
    async with _fleet() as fleet:
        assignment = fleet.scheduler.assignment("noop")
        fleet.worker.receive(ConnectResponse(assignments=[assignment, assignment]))
        assert len(fleet.flush().results) == 1
        assert fleet.metrics.duplicate_assignments._value.get() == 1


async def test_a_new_stream_names_what_is_held_and_sends_again_what_is_owed() -> None:
    async with _fleet() as fleet:
        owed, held = fleet.assign("noop"), fleet.assign("gate")
        await fleet.result(owed)
        hello = fleet.worker.hello()
        assert {lease.lease_id for lease in hello.leases} == {owed.lease.lease_id, held.lease.lease_id}
        fleet.worker.welcome(Welcome(leases=hello.leases))
        request = fleet.flush()
        assert [result.lease for result in request.results] == [owed.lease]
        assert request.credits == 4
        assert fleet.gate.cancelled == []


async def test_leases_missing_in_the_welcome_are_stopped() -> None:
    async with _fleet() as fleet:
        owed, held = fleet.assign("noop"), fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 5.0)
        fleet.worker.hello()
        fleet.worker.welcome(Welcome())
        await wait_until_async(lambda: fleet.gate.cancelled == [held.lease.task_id], 5.0)
        assert not fleet.flush().results
        assert fleet.metrics.refused_results._value.get() == 1
        assert owed.lease.lease_id not in fleet.results


async def test_a_heartbeat_names_the_held_leases_and_the_policy_version() -> None:
    async with _fleet() as fleet:
        fleet.assign("noop")
        held = fleet.assign("gate")
        request = fleet.worker.next_request(heartbeat=True)
        assert request is not None
        assert list(request.heartbeat.leases) == [held.lease]
        assert request.heartbeat.policy_version == 9


async def test_a_heartbeat_is_sent_even_when_nothing_is_held() -> None:
    async with _fleet() as fleet:
        fleet.flush()
        request = fleet.worker.next_request(heartbeat=True)
        assert request is not None
        assert request.HasField("heartbeat")


async def test_a_leaving_actor_says_so_once_takes_nothing_more_and_ends_what_it_holds() -> None:
    async with _fleet() as fleet:
        fleet.flush()
        held = fleet.assign("gate")
        fleet.worker.leave()
        request = fleet.flush()
        assert request.leaving
        assert request.credits == 0
        assert not fleet.flush().leaving
        assert not await fleet.worker.drained(0.01)
        fleet.gate.open.set()
        result = await fleet.result(held)
        assert not await fleet.worker.drained(0.01)
        fleet.worker.receive(ConnectResponse(acknowledged=[result.lease]))
        assert await fleet.worker.drained(5.0)


async def test_a_leaving_actor_says_so_again_on_a_new_stream() -> None:
    async with _fleet() as fleet:
        fleet.assign("gate")
        fleet.worker.leave()
        fleet.flush()
        fleet.worker.hello()
        assert fleet.flush().leaving


async def test_a_reset_gives_back_what_runs_and_drops_what_is_kept() -> None:
    async with _fleet() as fleet:
        running, waiting = fleet.assign("gate"), fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 5.0)
        fleet.worker.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_RESET))
        for assignment in (running, waiting):
            failure = (await fleet.result(assignment)).failure
            assert (failure.reason, failure.retryable) == ("CANCELLED", True)
        await wait_until_async(lambda: fleet.gate.cancelled == [running.lease.task_id], 5.0)
        assert fleet.keeps.resets == 1
        assert fleet.cache_resets == 1
        fleet.gate.open.set()
        assert (await fleet.result(fleet.assign("gate"))).HasField("result")


async def test_a_drain_asks_the_process_to_leave() -> None:
    async with _fleet() as fleet:
        fleet.worker.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_PAUSE))
        assert not fleet.worker.asked_to_leave.is_set()
        fleet.worker.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_DRAIN))
        assert fleet.worker.asked_to_leave.is_set()


async def test_results_are_split_over_messages_by_their_size() -> None:
    async with _fleet(message_bytes=64 << 10, prefetch=20) as fleet:
        for _ in range(4):
            fleet.assign("echo", {"text": "x" * 20_000})
        assert len(fleet.flush().results) == 1
        assert fleet.worker.outbound.is_set()
        while fleet.flush().results:
            pass
        assert len(fleet.results) == 4


async def test_a_result_too_large_to_be_sent_is_a_failure() -> None:
    async with _fleet(message_bytes=64 << 10) as fleet:
        failure = (await fleet.result(fleet.assign("echo", {"text": "x" * 40_000}))).failure
        assert failure.reason == "INVALID_RESULT"


async def test_what_still_runs_is_stopped_when_the_worker_is_closed() -> None:
    async with _fleet() as fleet:
        assignment = fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 5.0)
    assert fleet.gate.cancelled == [assignment.lease.task_id]
    assert fleet.metrics.tasks.labels("gate", "CANCELLED")._value.get() == 1


@pytest.mark.parametrize(("kind", "outcome"), [("noop", "succeeded"), ("fail", "HANDLER_ERROR")])
async def test_attempts_are_counted_by_kind_and_outcome(kind: str, outcome: str) -> None:
    async with _fleet() as fleet:
        fleet.assign(kind)
        fleet.assign(kind)
        assert fleet.metrics.tasks.labels(kind, outcome)._value.get() == 2
