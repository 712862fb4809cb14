"""What a session says to the scheduler and does at its word: hello, credits, results, heartbeats, commands, leaving."""

from typing import Any

import pytest

from parlmesh.handlers import Context, RunsIn
from parlmesh.testing import wait_until_async
from parlmesh.v1.fleet_service_pb2 import ConnectResponse, Welcome
from parlmesh.v1.scheduler_service_pb2 import ActorCommand
from tests.actor.session.conftest import fleet_of as _fleet


async def test_hello_says_who_the_actor_is_and_what_it_can_do() -> None:
    async with _fleet(slots=2) as fleet:
        hello = fleet.session.hello()
        assert (hello.node_id, hello.actor_id, hello.incarnation, hello.slots) == ("node", "node-1", 42, 2)
        assert list(hello.kinds) == ["echo", "fail", "gate", "keeps", "noop", "sleep"]
        assert dict(hello.labels) == {"zone": "a"}


async def test_the_first_request_grants_the_slots_and_the_prefetch() -> None:
    async with _fleet(slots=2) as fleet:
        assert fleet.flush().credits == 6
        assert fleet.session.next_request() is None


async def test_an_assignment_that_comes_twice_runs_once() -> None:
    async with _fleet() as fleet:
        assignment = fleet.scheduler.assignment("noop")
        fleet.session.receive(ConnectResponse(assignments=[assignment, assignment]))
        assert len(fleet.flush().results) == 1
        assert fleet.metrics.duplicate_assignments._value.get() == 1


async def test_a_new_stream_names_what_is_held_and_sends_again_what_is_owed() -> None:
    async with _fleet() as fleet:
        owed, held = fleet.assign("noop"), fleet.assign("gate")
        await fleet.result(owed)
        hello = fleet.session.hello()
        assert {lease.lease_id for lease in hello.leases} == {owed.lease.lease_id, held.lease.lease_id}
        fleet.session.welcome(Welcome(leases=hello.leases))
        request = fleet.flush()
        assert [result.lease for result in request.results] == [owed.lease]
        assert request.credits == 4
        assert fleet.gate.cancelled == []


async def test_leases_missing_in_the_welcome_are_stopped() -> None:
    async with _fleet() as fleet:
        owed, held = fleet.assign("noop"), fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 60.0)
        fleet.session.hello()
        fleet.session.welcome(Welcome())
        await wait_until_async(lambda: fleet.gate.cancelled == [held.lease.task_id], 60.0)
        assert not fleet.flush().results
        assert fleet.metrics.refused_results._value.get() == 1
        assert owed.lease.lease_id not in fleet.results


async def test_a_heartbeat_names_the_held_leases_and_the_policy_version() -> None:
    async with _fleet() as fleet:
        fleet.assign("noop")
        held = fleet.assign("gate")
        request = fleet.session.next_request(heartbeat=True)
        assert request is not None
        assert list(request.heartbeat.leases) == [held.lease]
        assert request.heartbeat.policy_version == 9


async def test_a_heartbeat_is_sent_even_when_nothing_is_held() -> None:
    async with _fleet() as fleet:
        fleet.flush()
        request = fleet.session.next_request(heartbeat=True)
        assert request is not None
        assert request.HasField("heartbeat")


async def test_a_leaving_actor_says_so_once_takes_nothing_more_and_ends_what_it_holds() -> None:
    async with _fleet() as fleet:
        fleet.flush()
        held = fleet.assign("gate")
        fleet.session.leave()
        request = fleet.flush()
        assert request.leaving
        assert request.credits == 0
        assert not fleet.flush().leaving
        assert not await fleet.session.drained(0.01)
        fleet.gate.open.set()
        result = await fleet.result(held)
        assert not await fleet.session.drained(0.01)
        fleet.session.receive(ConnectResponse(acknowledged=[result.lease]))
        assert await fleet.session.drained(5.0)


async def test_a_leaving_actor_says_so_again_on_a_new_stream() -> None:
    async with _fleet() as fleet:
        fleet.assign("gate")
        fleet.session.leave()
        fleet.flush()
        fleet.session.hello()
        assert fleet.flush().leaving


async def test_a_reset_gives_back_what_runs_and_drops_what_is_kept() -> None:
    async with _fleet() as fleet:
        running, waiting = fleet.assign("gate"), fleet.assign("gate")
        await wait_until_async(lambda: fleet.gate.started, 60.0)
        fleet.session.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_RESET))
        for assignment in (running, waiting):
            failure = (await fleet.result(assignment)).failure
            assert (failure.reason, failure.retryable) == ("CANCELLED", True)
        await wait_until_async(lambda: fleet.gate.cancelled == [running.lease.task_id], 60.0)
        assert fleet.keeps.resets == 1
        assert fleet.cache_resets == 1
        fleet.gate.open.set()
        assert (await fleet.result(fleet.assign("gate"))).HasField("result")


class _Clings:
    """Cannot let go of what it keeps."""

    kind = "clings"
    runs_in = RunsIn.INLINE

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.resets = 0

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        return {}

    def reset(self) -> None:
        self.resets += 1
        raise self.error


@pytest.mark.parametrize("error", [ValueError("stuck"), SystemExit(3)])
async def test_a_handler_that_cannot_be_reset_costs_neither_the_actor_nor_the_other_handlers(
    error: BaseException,
) -> None:
    clings = _Clings(error)
    # Before the others in the order of the handlers, and behind them.
    async with _fleet(extra={"a_clings": clings, "clings": clings}) as fleet:
        fleet.session.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_RESET))
        assert clings.resets == 2
        assert (fleet.keeps.resets, fleet.cache_resets) == (1, 1)
        assert (await fleet.result(fleet.assign("noop"))).HasField("result")
    assert fleet.keeps.resets == 2


async def test_a_reset_spares_what_was_assigned_in_the_same_message() -> None:
    async with _fleet(slots=2) as fleet:
        old = [fleet.assign("gate"), fleet.assign("gate")]
        await wait_until_async(lambda: len(fleet.gate.started) == 2, 60.0)
        fresh = [fleet.scheduler.assignment("gate"), fleet.scheduler.assignment("gate")]
        fleet.session.receive(
            ConnectResponse(
                revoked=[each.lease for each in old],
                assignments=fresh,
                command=ActorCommand.ACTOR_COMMAND_RESET,
            )
        )
        fleet.gate.open.set()
        for assignment in fresh:
            assert (await fleet.result(assignment)).HasField("result")
        assert fleet.results.keys() == {each.lease.lease_id for each in fresh}
        assert fleet.gate.cancelled == [each.lease.task_id for each in old]


@pytest.mark.parametrize("ending", ["reset", "revocation"])
async def test_a_task_stopped_before_its_first_step_gives_its_slot_back(ending: str) -> None:
    async with _fleet(slots=2, prefetch=0) as fleet:
        assert fleet.flush().credits == 2
        fresh = [fleet.assign("gate"), fleet.assign("gate")]
        if ending == "reset":
            fleet.session.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_RESET))
        else:
            fleet.session.receive(ConnectResponse(revoked=[each.lease for each in fresh]))
        assert fleet.gate.started == []
        await wait_until_async(lambda: fleet.metrics.slots_busy._value.get() == 0, 60.0)
        assert fleet.flush().credits == 2
        fleet.gate.open.set()
        for assignment in [fleet.assign("gate"), fleet.assign("gate")]:
            assert (await fleet.result(assignment)).HasField("result")


async def test_an_assignment_that_is_revoked_in_the_same_message_never_runs() -> None:
    async with _fleet() as fleet:
        gone = [fleet.scheduler.assignment("keeps"), fleet.scheduler.assignment("gate")]
        fleet.flush()
        fleet.session.receive(ConnectResponse(assignments=gone, revoked=[each.lease for each in gone]))
        assert fleet.flush().credits == 2
        fleet.gate.open.set()
        await fleet.result(fleet.assign("gate"))
        assert len(fleet.results) == len(fleet.gate.started) == 1


async def test_a_drain_asks_the_process_to_leave() -> None:
    async with _fleet() as fleet:
        fleet.session.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_PAUSE))
        assert not fleet.session.asked_to_leave.is_set()
        fleet.session.receive(ConnectResponse(command=ActorCommand.ACTOR_COMMAND_DRAIN))
        assert fleet.session.asked_to_leave.is_set()


async def test_results_are_split_over_messages_by_their_size() -> None:
    async with _fleet(message_bytes=64 << 10, prefetch=20) as fleet:
        for _ in range(4):
            fleet.assign("echo", {"text": "x" * 20_000})
        assert len(fleet.flush().results) == 1
        assert fleet.session.outbound.is_set()
        while fleet.flush().results:
            pass
        assert len(fleet.results) == 4


async def test_a_result_too_large_to_be_sent_is_a_failure() -> None:
    async with _fleet(message_bytes=64 << 10) as fleet:
        failure = (await fleet.result(fleet.assign("echo", {"text": "x" * 64_000}))).failure
        assert failure.reason == "INVALID_RESULT"
