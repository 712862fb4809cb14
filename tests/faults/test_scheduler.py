"""A scheduler that is killed, stopped, on a bad disk or on a clock that jumps: real processes."""

import asyncio
import contextlib
import errno
import signal
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.testing.history import now
from parlmesh.v1 import task_pb2

pytestmark = pytest.mark.e2e

ALL = tuple(f"t{number}" for number in range(8))


async def healths_while(leaving: Any, address: str) -> list[bool]:
    """The health that a process reports while it stops gracefully, which must end with exit code 0."""
    told: list[bool] = []
    async with open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60.0, wait_for_ready=True)

        async def follow() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for answer in watch:
                    told.append(answer.status == health_pb2.HealthCheckResponse.SERVING)

        following = asyncio.create_task(follow())
        await wait_until_async(lambda: told, 60.0)
        assert await leaving == 0
        await following
    return told


async def serving(fleet) -> bool:
    async with open_channel(fleet.processes.scheduler_address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=10.0, wait_for_ready=True)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def test_a_stalled_scheduler_takes_nobodys_lease(open_fleet) -> None:
    async with open_fleet(slots=[4]) as fleet:
        await fleet.submit(*ALL[:4], seconds=6.0)
        await fleet.until_begun(*ALL[:4])
        fleet.scheduler.signal(signal.SIGSTOP)
        # Twice the lease.
        await asyncio.sleep(4.0)
        fleet.scheduler.signal(signal.SIGCONT)
        outcomes = await fleet.outcomes(*ALL[:4])
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert fleet.violations() == []


async def test_a_scheduler_told_to_stop_reports_it_first_and_costs_no_running_work(open_fleet) -> None:
    async with open_fleet(slots=[4]) as fleet:
        await fleet.submit(*ALL[:4], seconds=3.0)
        await fleet.submit(*ALL[4:])
        await fleet.until_begun(*ALL[:4])
        told = await healths_while(fleet.scheduler.terminate(), fleet.processes.scheduler_address)
        assert told == [True, False]
        await fleet.scheduler.start()
        outcomes = await fleet.outcomes(*ALL)
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert len(fleet.begun()) == len(ALL)
        assert fleet.violations() == []


async def test_a_submit_whose_answer_was_lost_can_be_repeated(open_fleet) -> None:
    async with open_fleet() as fleet:
        link = fleet.processes.links["client"]
        await fleet.submit("first", kind="mark_inline")
        link.hold(up=False)
        asking = asyncio.create_task(fleet.submit("lost", kind="mark_inline"))
        # The task is committed and run while the answer is held back; then the link is cut and the answer is lost.
        await fleet.until_begun("lost")
        assert not asking.done()
        link.cut()
        with pytest.raises(grpc.aio.AioRpcError):
            await asking
        assert link.cuts > 0
        link.heal()
        await fleet.submit("lost", kind="mark_inline")
        outcome = (await fleet.outcomes("lost"))["lost"]
        assert outcome.state == task_pb2.TASK_STATE_SUCCEEDED
        assert len(fleet.begun("lost")) == 1


@pytest.mark.parametrize("shift", [3600, pytest.param(-3600, marks=pytest.mark.slow)])
async def test_a_jump_of_the_wall_clock_changes_no_lease_and_no_deadline(open_fleet, shift: int) -> None:
    async with open_fleet(slots=[2]) as fleet:
        # Deadlines get no shorter when the clock jumps forward and no longer when it goes back.
        far, soon = Duration(seconds=600), Duration(seconds=2)
        await fleet.submit("long", seconds=4.0, run_timeout=far)
        await fleet.submit("endless", seconds=600.0, run_timeout=soon, max_attempts=1)
        await fleet.until_begun("long", "endless")
        await fleet.submit("patient", seconds=0.0, queue_timeout=far, priority=task_pb2.PRIORITY_LOW)
        for member in (fleet.scheduler, fleet.actor()):
            member.shim.set(clock_shift_s=shift)
        await fleet.submit("busy", seconds=600.0, run_timeout=Duration(seconds=4), max_attempts=1)
        await fleet.submit("hasty", seconds=0.0, queue_timeout=Duration(nanos=500_000_000))
        outcomes = await fleet.outcomes("long", "endless", "patient", "busy", "hasty")
        ends = {name: (outcome.state, outcome.failure.reason) for name, outcome in outcomes.items()}
        assert ends == {
            "long": (task_pb2.TASK_STATE_SUCCEEDED, ""),
            "patient": (task_pb2.TASK_STATE_SUCCEEDED, ""),
            "endless": (task_pb2.TASK_STATE_FAILED, "DEADLINE_EXCEEDED"),
            "busy": (task_pb2.TASK_STATE_FAILED, "DEADLINE_EXCEEDED"),
            "hasty": (task_pb2.TASK_STATE_FAILED, "QUEUE_TIMEOUT"),
        }
        assert {name: outcome.attempts for name, outcome in outcomes.items() if name != "hasty"} == dict.fromkeys(
            ("long", "patient", "endless", "busy"), 1
        )
        assert all(0 <= outcome.ran.ToSeconds() < 60 for outcome in outcomes.values())
        assert fleet.scheduler.shim.seen("shifted_clocks") > 0
        assert fleet.violations() == []


@pytest.mark.parametrize(
    ("faults", "counter"),
    [
        ({"bytes_left": 0}, "full_writes"),
        ({"write_errno": errno.EIO}, "failed_writes"),
        pytest.param({"write_errno": errno.EROFS}, "failed_writes", marks=pytest.mark.slow),
    ],
)
async def test_a_bad_disk_acknowledges_nothing_says_so_and_recovers(open_fleet, faults, counter) -> None:
    async with open_fleet() as fleet:
        await fleet.submit("before", kind="mark_inline")
        await fleet.outcomes("before")
        fleet.scheduler.shim.set(**faults)
        asking = asyncio.create_task(fleet.submit("during", kind="mark_inline"))
        await wait_until_async(lambda: fleet.scheduler.shim.seen(counter) > 0, 60.0)
        await wait_until_async(lambda: _not(serving(fleet)), 60.0)
        assert not asking.done()
        fleet.scheduler.shim.heal()
        await asking
        await fleet.outcomes("during")
        await wait_until_async(lambda: serving(fleet), 60.0)
        await fleet.scheduler.kill()
        if counter == "full_writes":
            # A scheduler that starts without space waits for some.
            fleet.scheduler.shim.set(**faults)
            refused = fleet.scheduler.shim.seen(counter)
            starting = asyncio.create_task(fleet.scheduler.start())
            await wait_until_async(lambda: fleet.scheduler.shim.seen(counter) > refused, 60.0)
            assert not starting.done()
            fleet.scheduler.shim.heal()
            await starting
        else:
            await fleet.scheduler.start()
        assert set(await fleet.outcomes("before", "during")) == {"before", "during"}
        assert fleet.violations() == []


async def test_no_task_starts_whose_lease_cannot_be_recorded(open_fleet) -> None:
    async with open_fleet(slots=[1]) as fleet:
        names = ("first", "second", "third")
        await fleet.submit(*names, seconds=3.0)
        await fleet.until_begun("first")
        fleet.scheduler.shim.set(write_errno=errno.EIO)
        asking = asyncio.create_task(fleet.submit("refused"))
        await wait_until_async(lambda: _not(serving(fleet)), 60.0)
        # The first task ends; an actor killed now has forgotten whatever it started since.
        await asyncio.sleep(5.0)
        assert fleet.scheduler.shim.seen("failed_writes") > 0
        await fleet.scheduler.kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await asking
        fleet.scheduler.shim.heal()
        await fleet.scheduler.start()
        await fleet.outcomes(*names)
        assert sorted(attempt.task_id for attempt in fleet.begun()) == sorted(names)
        assert fleet.violations() == []


async def _not(answer) -> bool:
    return not await answer


async def test_writes_that_are_cut_short_lose_nothing(open_fleet) -> None:
    async with open_fleet(**{"store.compact_records": 20}) as fleet:
        fleet.scheduler.shim.set(short_writes=1)
        names = [f"s{number}" for number in range(40)]
        for name in names:
            await fleet.submit(name, kind="mark_inline")
        await fleet.outcomes(*names)
        assert fleet.scheduler.shim.seen("shortened_writes") > 0
        await fleet.scheduler.kill()
        await fleet.scheduler.start()
        assert len(await fleet.outcomes(*names)) == len(names)
        assert fleet.violations() == []


async def test_a_slow_disk_loses_no_lease_and_shares_its_commits(open_fleet) -> None:
    async with open_fleet(slots=[4]) as fleet:
        fleet.scheduler.shim.set(fsync_delay_ms=500)
        names = [f"slow{number}" for number in range(40)]
        start = now()
        # Submitted together, they share a few commits instead of waiting for one each.
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(fleet.submit(name, kind="mark_inline"))
        shared = now() - start
        slow = fleet.scheduler.shim.seen("slow_fsyncs")
        assert 0 < slow < len(names)
        assert shared < 0.5 * len(names)
        await fleet.submit("held", seconds=3.0)
        outcomes = await fleet.outcomes("held", *names)
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert (await fleet.statistics()).ready_workers == 1
        assert fleet.violations() == []


@pytest.mark.slow
async def test_a_slow_disk_costs_latency_and_less_than_half_of_the_throughput(open_fleet) -> None:
    """Batches grow: decisions made during one sync are committed together, and slots have work meanwhile."""
    count = 400

    async def load(fleet, name: str) -> float:
        names = [f"{name}{number}" for number in range(count)]
        start = now()
        await fleet.submit(*names, seconds=0.4)
        await wait_until_async(lambda: len(fleet.begun(*names)) == count, 120.0)
        return now() - start

    async with open_fleet(slots=[16]) as fleet:
        quick = await load(fleet, "quick")
        fleet.scheduler.shim.set(fsync_delay_ms=500)
        slow = await load(fleet, "slow")
        synced = fleet.scheduler.shim.seen("slow_fsyncs")
        print(f"{count} tasks of 0.4 s in 16 slots: {quick:.2f} s, {slow:.2f} s with {synced} slow syncs")
        assert 0 < synced < count / 16
        assert slow < 2 * quick
        statistics = await fleet.statistics()
        assert (statistics.ready_workers, statistics.retried_tasks, statistics.failed_tasks) == (1, 0, 0)
        assert {attempt.attempt for attempt in fleet.begun()} == {1}
