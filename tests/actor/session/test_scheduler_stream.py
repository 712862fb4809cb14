import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.handlers.demo import Noop, Sleep
from actor.metrics import ActorMetrics
from actor.session import scheduler_stream
from actor.session.actor_identity import ActorIdentity
from actor.session.scheduler_stream import Uplink
from actor.session.session import ActorSession
from parlmesh.blob_transfer import Exchange
from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, PermissionDenied, Unauthenticated, Unavailable
from parlmesh.handlers import Context, RunsIn
from parlmesh.rpc import open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.testing.fleet import FakeScheduler
from parlmesh.v1.fleet_service_pb2 import ConnectResponse, Welcome
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub


class Spins:
    """Keeps its thread busy until it is stopped."""

    kind = "spins"
    runs_in = RunsIn.THREAD

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        while not context.cancelled:
            sum(range(1000))
        return {}


class Counts:
    """Takes next to no time on its slot's thread."""

    kind = "counts"
    runs_in = RunsIn.THREAD

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        return {}


@dataclass
class Connected:
    scheduler: FakeScheduler
    uplink: Uplink
    run: "asyncio.Task[None]"
    metrics: ActorMetrics


@asynccontextmanager
async def _connected(*, from_clock: bool = False) -> AsyncIterator[Connected]:
    scheduler, metrics = FakeScheduler(), ActorMetrics(CollectorRegistry())
    limits = LimitsConfig(prefetch=64, reconnect_seconds=0.02, connect_seconds=0.3)
    handlers = {handler.kind: handler for handler in (Noop(), Sleep(), Spins(), Counts())}
    session = ActorSession(
        ActorIdentity("node", "node-1", 1, from_clock),
        handlers,
        slots=1,
        labels={},
        limits=limits,
        metrics=metrics,
        policy_version=lambda: 0,
        exchange=Exchange(None, "", cache_bytes=0, call_seconds=1.0, keeps_results=True),
        on_reset=lambda: None,
    )
    async with serve([scheduler.service]) as address, open_channel(address) as channel, session:
        uplink = Uplink(
            session,
            FleetServiceStub(channel),
            scheduler=address,
            limits=limits,
            metrics=metrics,
            rng=random.Random(0),
        )
        run = asyncio.create_task(uplink.run())
        yield Connected(scheduler, uplink, run, metrics)
        run.cancel()
        await asyncio.wait({run})


async def test_an_actor_connects_grants_credits_and_answers() -> None:
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        assert stream.hello.actor_id == "node-1"
        assert stream.credits == 65
        assignment = fleet.scheduler.assignment("noop")
        stream.send(ConnectResponse(assignments=[assignment]))
        assert (await stream.result(assignment.lease.lease_id)).HasField("result")


async def test_results_that_are_ready_together_travel_together() -> None:
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        stream.send(ConnectResponse(assignments=[fleet.scheduler.assignment("noop") for _ in range(64)]))
        await stream.until(lambda: len(stream.results) == 64)
        assert [len(request.results) for request in stream.requests if request.results] == [64]


async def test_results_of_short_tasks_gather_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_stream, "_GATHER_SECONDS", 1.0)
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        count = 60
        stream.send(ConnectResponse(assignments=[fleet.scheduler.assignment("counts") for _ in range(count)]))
        await stream.until(lambda: len(stream.results) == count)
        sent = [len(request.results) for request in stream.requests if request.results]
        assert len(sent) <= count // 4, sent


async def test_a_result_waits_for_nothing_when_no_other_task_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_stream, "_GATHER_SECONDS", 3600.0)
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        for _ in range(5):
            assignment = fleet.scheduler.assignment("counts")
            stream.send(ConnectResponse(assignments=[assignment]))
            assert (await stream.result(assignment.lease.lease_id)).HasField("result")


async def test_heartbeats_go_on_while_a_handler_keeps_its_thread_busy() -> None:
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        assignment = fleet.scheduler.assignment("spins")
        stream.send(ConnectResponse(assignments=[assignment]))
        await stream.until(lambda: sum(bool(beat.leases) for beat in stream.heartbeats) >= 3)
        assert stream.heartbeats[-1].leases == [assignment.lease]


async def test_after_a_broken_stream_the_actor_comes_back_and_sends_what_was_not_acknowledged() -> None:
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        done, held = fleet.scheduler.assignment("noop"), fleet.scheduler.assignment("sleep", {"seconds": 600})
        stream.send(ConnectResponse(assignments=[done, held]))
        await stream.result(done.lease.lease_id)
        stream.end(Unavailable("gone"))

        second = await fleet.scheduler.welcomed()
        assert {lease.lease_id for lease in second.hello.leases} == {done.lease.lease_id, held.lease.lease_id}
        await second.result(done.lease.lease_id)
        second.acknowledge(second.results.values())
        second.end()

        third = await fleet.scheduler.welcomed()
        assert [lease.lease_id for lease in third.hello.leases] == [held.lease.lease_id]
        assert third.credits == 64
        assert fleet.metrics.reconnects.labels("scheduler")._value.get() == 2


async def test_a_scheduler_that_gives_no_welcome_is_tried_again() -> None:
    async with _connected() as fleet:
        await fleet.scheduler.stream()
        assert (await fleet.scheduler.welcomed()).credits == 65


async def test_a_scheduler_that_refuses_for_now_is_tried_again() -> None:
    async with _connected() as fleet:
        for error in (FailedPrecondition("not now"), Unavailable("not yet"), None):
            (await fleet.scheduler.stream()).end(error)
        assert (await fleet.scheduler.welcomed()).credits == 65


@pytest.mark.parametrize("error", [Unauthenticated("who?"), PermissionDenied("not you"), InvalidInput("no kinds")])
async def test_a_scheduler_that_refuses_who_calls_or_what_it_says_is_not_tried_again(error: FleetError) -> None:
    async with _connected() as fleet:
        (await fleet.scheduler.stream()).end(error)
        with pytest.raises(type(error), match=error.message):
            await fleet.run


async def test_credentials_that_were_good_may_be_refused_while_they_are_renewed() -> None:
    async with _connected() as fleet:
        (await fleet.scheduler.welcomed()).end(Unauthenticated("expired"))
        (await fleet.scheduler.stream()).end(Unauthenticated("expired"))
        assert (await fleet.scheduler.welcomed()).credits == 65


async def test_closing_sends_what_is_ready_and_ends_the_stream() -> None:
    async with _connected() as fleet:
        stream = await fleet.scheduler.welcomed()
        fleet.uplink.close()
        async with asyncio.timeout(60.0):
            await fleet.run
        assert fleet.metrics.connected._value.get() == 0
        assert stream.outbound.empty()


async def test_closing_does_not_wait_for_a_scheduler_that_is_away() -> None:
    async with _connected() as fleet:
        (await fleet.scheduler.stream()).end(Unavailable("gone"))
        await wait_until_async(lambda: fleet.metrics.reconnects.labels("scheduler")._value.get(), 60.0)
        fleet.uplink.close()
        async with asyncio.timeout(60.0):
            await fleet.run


async def test_an_actor_whose_clock_went_back_comes_again_after_its_last_start() -> None:
    async with _connected(from_clock=True) as fleet:
        first = await fleet.scheduler.stream()
        assert first.hello.incarnation == 1
        first.end(FailedPrecondition("an older start", reason="OLD_INCARNATION", newest_incarnation=70))
        second = await fleet.scheduler.stream()
        assert second.hello.incarnation == 71
        second.send(ConnectResponse(welcome=Welcome(newest_incarnation=90)))
        third = await fleet.scheduler.stream()
        assert third.hello.incarnation == 91
        third.send(ConnectResponse(welcome=Welcome(newest_incarnation=91)))
        await wait_until_async(lambda: fleet.metrics.connected._value.get() == 1, 60.0)
        # Once it was welcomed, whoever is above it has taken its place.
        rival = FailedPrecondition("an older start", reason="OLD_INCARNATION", newest_incarnation=99)
        third.end(rival)
        # A connection that is cut before that answer arrives makes it come once more, and it is told again.
        refusing = asyncio.ensure_future(_end_all(fleet.scheduler, rival))
        with pytest.raises(FailedPrecondition, match="an older start"):
            async with asyncio.timeout(60.0):
                await fleet.run
        refusing.cancel()


async def _end_all(scheduler: FakeScheduler, error: FailedPrecondition) -> None:
    while True:
        (await scheduler.stream()).end(error)


async def test_an_actor_that_was_replaced_by_a_later_start_of_itself_gives_up() -> None:
    async with _connected() as fleet:
        stream = await fleet.scheduler.stream()
        stream.end(FailedPrecondition("incarnation 1 is an older start of it", reason="OLD_INCARNATION"))
        with pytest.raises(FailedPrecondition, match="an older start"):
            async with asyncio.timeout(60.0):
                await fleet.run


async def test_an_actor_whose_clock_went_back_outwaits_a_dead_start_that_is_not_missed_yet() -> None:
    async with _connected(from_clock=True) as fleet:
        rival = FailedPrecondition("an older start", reason="OLD_INCARNATION", lapse_seconds=60.0)
        for _ in range(2):
            (await fleet.scheduler.stream()).end(rival)
        missed = FailedPrecondition("an older start", reason="OLD_INCARNATION", newest_incarnation=70)
        (await fleet.scheduler.stream()).end(missed)
        assert (await fleet.scheduler.welcomed()).hello.incarnation == 71


async def test_an_actor_gives_up_against_a_later_start_that_is_still_heard() -> None:
    async with _connected(from_clock=True) as fleet:
        refused = 0

        async def refuse() -> None:
            nonlocal refused
            while True:
                stream = await fleet.scheduler.stream()
                stream.end(FailedPrecondition("an older start", reason="OLD_INCARNATION", lapse_seconds=0.1))
                refused += 1

        refusing = asyncio.ensure_future(refuse())
        with pytest.raises(FailedPrecondition, match="an older start"):
            async with asyncio.timeout(60.0):
                await fleet.run
        refusing.cancel()
        assert refused > 1, "it came again before it gave up"
