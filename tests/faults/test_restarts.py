"""What a restart of the scheduler must keep: running work, results that came meanwhile, timers despite a moved
clock."""

import asyncio
import os
from pathlib import Path

import pytest

from parlmesh.testing import wait_until_async
from parlmesh.v1 import task_pb2

pytestmark = pytest.mark.e2e

SECONDS = 120.0
ALL = tuple(f"t{number}" for number in range(8))


async def test_running_work_of_many_slots_outlives_the_death_of_the_scheduler(open_fleet) -> None:
    async with open_fleet(slots=[4, 4]) as fleet:
        await fleet.submit(*ALL, seconds=3.0)
        await fleet.until_begun(*ALL)
        await fleet.scheduler.kill()
        await fleet.scheduler.start()
        outcomes = await fleet.outcomes(*ALL)
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert len(fleet.begun()) == len(ALL)
        assert fleet.violations() == []


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_1500_running_and_10000_queued_tasks_outlive_the_death_of_the_scheduler(open_fleet) -> None:
    running, queued = [f"r{number}" for number in range(1_500)], [f"q{number}" for number in range(10_000)]
    patient = {"leases.duration_seconds": 20.0, "leases.reconnect_seconds": 20.0}
    async with open_fleet(slots=[250] * 6, **patient) as fleet:
        await fleet.submit(*running, seconds=90.0)
        await fleet.submit(*queued)
        await wait_until_async(lambda: len(fleet.begun(*running)) == len(running), SECONDS)
        before = await fleet.statistics()
        # The actors hold a few more, behind the running ones.
        assert before.running_tasks >= len(running)
        assert before.running_tasks + before.queued_tasks == len(running) + len(queued)
        await fleet.scheduler.kill()
        assert len(fleet.begun()) < len(running) + len(queued), "not all could run yet"
        await fleet.scheduler.start()
        assert fleet.scheduler.process is not None
        # By its processor time, since others may use the machine: it serves again within five seconds.
        assert cpu_seconds(fleet.scheduler.process.pid) < 5.0
        outcomes = await fleet.outcomes(*running, *queued, seconds=300.0)
        assert {(outcome.state, outcome.attempts) for outcome in outcomes.values()} == {
            (task_pb2.TASK_STATE_SUCCEEDED, 1)
        }
        assert fleet.violations() == []
        assert len(fleet.begun(*running)) == len(running)
        assert (await fleet.statistics()).retried_tasks == 0


async def test_results_that_came_while_the_scheduler_was_away_count(open_fleet) -> None:
    async with open_fleet(slots=[4, 4]) as fleet:
        await fleet.submit(*ALL, seconds=0.5)
        await fleet.until_begun(*ALL)
        await fleet.scheduler.kill()
        # Everything ends while there is no scheduler to tell.
        await asyncio.sleep(1.0)
        await fleet.scheduler.start()
        outcomes = await fleet.outcomes(*ALL)
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert fleet.violations() == []


@pytest.mark.parametrize("shift", [7200, pytest.param(-7200, marks=pytest.mark.slow), 13 * 365 * 86_400])
async def test_a_clock_jump_during_a_restart_forgets_nothing_and_keeps_nobody_out(open_fleet, shift: int) -> None:
    async with open_fleet(slots=[2]) as fleet:
        await fleet.submit("ended", kind="mark_inline")
        await fleet.outcomes("ended")
        await fleet.submit("running", "queued", "waits", seconds=1.5)
        await fleet.until_begun("running", "queued")
        for member in (fleet.scheduler, fleet.actor()):
            member.shim.set(clock_shift_s=shift)
        await fleet.scheduler.kill()
        await fleet.scheduler.start()
        outcomes = await fleet.outcomes("ended", "running", "queued", "waits")
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        # An actor with a fixed id that starts on the moved clock does not count as an older start of itself.
        await fleet.actor().kill()
        await fleet.actor().start()
        await fleet.submit("after", kind="mark_inline")
        await fleet.outcomes("after")
        assert fleet.scheduler.shim.seen("shifted_clocks") > 0
        assert fleet.violations() == []
