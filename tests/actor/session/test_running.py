"""How a session runs what it was given: slots, order, deadlines, tasks that only wait, and failures."""

import asyncio
import threading
from typing import Any

import pytest

from parlmesh.exception_text import first_line
from parlmesh.handlers import Context, RunsIn, Tail
from parlmesh.testing import wait_until_async
from parlmesh.v1.fleet_service_pb2 import ConnectResponse
from parlmesh.v1.task_pb2 import Priority
from parlmesh.wire import payload_from_proto
from tests.actor.session.conftest import fleet_of as _fleet


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


async def test_inline_tasks_have_ended_when_the_message_is_taken_in() -> None:
    async with _fleet() as fleet:
        fleet.flush()
        assignments = [fleet.scheduler.assignment("noop") for _ in range(3)]
        fleet.session.receive(ConnectResponse(assignments=assignments))
        request = fleet.session.next_request()
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
        await wait_until_async(lambda: fleet.gate.started, 60.0)
        low = fleet.assign("gate", priority=Priority.PRIORITY_LOW)
        critical = fleet.assign("gate", priority=Priority.PRIORITY_CRITICAL)
        fleet.gate.open.set()
        await fleet.result(low)
        assert fleet.gate.started == [each.lease.task_id for each in (first, critical, low)]


async def test_as_many_tasks_run_at_once_as_there_are_slots() -> None:
    async with _fleet(slots=2) as fleet:
        assignments = [fleet.assign("gate") for _ in range(3)]
        await wait_until_async(lambda: len(fleet.gate.started) == 2, 60.0)
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
        await wait_until_async(lambda: fleet.gate.started, 60.0)
        fleet.session.receive(ConnectResponse(revoked=[running.lease, waiting.lease]))
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
        await wait_until_async(slow.started.is_set, 60.0)
        fleet.session.receive(ConnectResponse(revoked=[assignment.lease]))
        assert fleet.flush().credits == 0
        slow.release.set()
        await wait_until_async(lambda: fleet.flush().credits, 60.0)


async def test_a_task_that_only_waits_leaves_its_slot_to_the_next() -> None:
    trails = Trails()
    async with _fleet(extra={"trails": trails}) as fleet:
        waiting = [fleet.assign("trails") for _ in range(3)]
        await wait_until_async(lambda: trails.waiting == 3, 60.0)
        assert fleet.metrics.slots_busy._value.get() == 0
        assert fleet.session.hello().leases == [each.lease for each in waiting]
        request = fleet.session.next_request()
        assert request is not None
        assert sorted(request.heartbeat.waiting_lease_ids) == [each.lease.lease_id for each in waiting]
        told_again = fleet.session.next_request()
        assert told_again is None or not told_again.HasField("heartbeat")
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
        await wait_until_async(lambda: trails.waiting == 2, 60.0)
        fleet.session.receive(ConnectResponse(revoked=[revoked.lease]))
        await wait_until_async(lambda: trails.cancelled == 1, 60.0)
        trails.open.set()
        failure = (await fleet.result(fails)).failure
        assert (failure.reason, first_line(failure.message)) == ("HANDLER_ERROR", "TimeoutError: own")
        assert revoked.lease.lease_id not in fleet.results


async def test_what_still_runs_is_stopped_when_the_worker_is_closed() -> None:
    async with _fleet() as fleet:
        assignment = fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 60.0)
    assert fleet.gate.cancelled == [assignment.lease.task_id]
    assert fleet.metrics.tasks.labels("gate", "CANCELLED")._value.get() == 1


@pytest.mark.parametrize(("kind", "outcome"), [("noop", "succeeded"), ("fail", "HANDLER_ERROR")])
async def test_attempts_are_counted_by_kind_and_outcome(kind: str, outcome: str) -> None:
    async with _fleet() as fleet:
        fleet.assign(kind)
        fleet.assign(kind)
        assert fleet.metrics.tasks.labels(kind, outcome)._value.get() == 2
