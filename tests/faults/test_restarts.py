"""What a restart of the scheduler must not cost: running work, results that came meanwhile, a clock that moved."""

import asyncio

import pytest

pytestmark = pytest.mark.e2e

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


async def test_results_that_came_while_the_scheduler_was_away_count(open_fleet) -> None:
    async with open_fleet(slots=[4, 4]) as fleet:
        await fleet.submit(*ALL, seconds=0.5)
        await fleet.until_begun(*ALL)
        await fleet.scheduler.kill()
        # Everything ends with nobody to tell.
        await asyncio.sleep(1.0)
        await fleet.scheduler.start()
        outcomes = await fleet.outcomes(*ALL)
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert fleet.violations() == []


@pytest.mark.parametrize("shift", [7200, pytest.param(-7200, marks=pytest.mark.slow), 13 * 365 * 86_400])
async def test_a_clock_that_jumped_over_a_restart_forgets_nothing_and_keeps_nobody_out(open_fleet, shift: int) -> None:
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
        # An actor of a fixed id that starts on the moved clock is no older start of itself.
        await fleet.actor().kill()
        await fleet.actor().start()
        await fleet.submit("after", kind="mark_inline")
        await fleet.outcomes("after")
        assert fleet.scheduler.shim.seen("shifted_clocks") > 0
        assert fleet.violations() == []
