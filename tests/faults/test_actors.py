"""Actors that are killed, stopped, cut off or heard in one direction only: real processes, signals and links."""

import asyncio
import signal

import pytest

from parlmesh.testing import wait_until_async
from parlmesh.testing.history import now
from parlmesh.v1 import task_pb2

pytestmark = pytest.mark.e2e


async def test_the_tasks_of_a_killed_actor_are_done_once_by_another(open_fleet) -> None:
    async with open_fleet(slots=[2, 2]) as fleet:
        await fleet.submit("a", "b", "c", "d", seconds=1.0)
        begun = await fleet.until_begun("a", "b", "c", "d")
        killed_at = now()
        await fleet.actor(0).kill()
        fleet.fault("actor-0", "kill", killed_at)
        outcomes = await fleet.outcomes("a", "b", "c", "d")
        assert {outcome.state for outcome in outcomes.values()} == {task_pb2.TASK_STATE_SUCCEEDED}
        lost = {attempt.task_id for attempt in begun if attempt.actor == "actor-0"}
        assert len(lost) == 2
        assert all(outcomes[task_id].actor_id == "actor-1" for task_id in lost)
        assert all(outcomes[task_id].attempts == 2 for task_id in lost)
        assert fleet.violations() == []


async def test_the_late_result_of_a_stopped_actor_is_refused(open_fleet) -> None:
    async with open_fleet(slots=[1, 1]) as fleet:
        await fleet.submit("late", seconds=0.5)
        (first,) = await fleet.until_begun("late")
        stopped, index = now(), int(first.actor[-1])
        fleet.actor(index).signal(signal.SIGSTOP)
        # The other actor gets the task and finishes it while the first one is stopped.
        outcome = (await fleet.outcomes("late"))["late"]
        assert outcome.actor_id != first.actor
        assert outcome.attempts == 2
        fleet.actor(index).signal(signal.SIGCONT)
        fleet.fault(first.actor, "stop", stopped, lingers=5.0)
        # The stopped actor is back and takes tasks again; its late result is not accepted.
        await fleet.submit(*(f"next-{number}" for number in range(8)), seconds=0.2)
        ended = await fleet.outcomes(*(f"next-{number}" for number in range(8)))
        assert {each.actor_id for each in ended.values()} == {"actor-0", "actor-1"}
        assert (await fleet.state_of("late")).outcome == outcome
        assert fleet.violations() == []


async def test_a_partition_that_outlasts_the_lease_costs_no_second_result(open_fleet) -> None:
    async with open_fleet(slots=[1, 1]) as fleet:
        await fleet.submit("cut", seconds=1.0)
        (first,) = await fleet.until_begun("cut")
        link, start = fleet.processes.links[first.actor], now()
        link.hold()
        # Twice the lease; meanwhile the task is done elsewhere, and also on the actor that is cut off.
        outcome = (await fleet.outcomes("cut"))["cut"]
        await wait_until_async(lambda: now() > start + 4.0, 60.0)
        assert link.up.held > 0
        link.heal()
        fleet.fault(first.actor, "hold", start, lingers=5.0)
        assert outcome.actor_id != first.actor
        await fleet.submit(*(f"next-{number}" for number in range(8)), seconds=0.2)
        ended = await fleet.outcomes(*(f"next-{number}" for number in range(8)))
        assert {each.actor_id for each in ended.values()} == {"actor-0", "actor-1"}
        assert (await fleet.state_of("cut")).outcome == outcome
        assert fleet.violations() == []


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_link_that_is_silent_in_one_direction_costs_no_second_result(open_fleet, direction: str) -> None:
    async with open_fleet(slots=[2]) as fleet:
        await fleet.submit("a", "b", seconds=0.3)
        await fleet.until_begun("a", "b")
        link, start = fleet.processes.links["actor-0"], now()
        # Results do not get through, or their acknowledgements do not.
        link.hold(up=direction == "up", down=direction == "down")
        await wait_until_async(lambda: (link.up if direction == "up" else link.down).held > 0, 60.0)
        await asyncio.sleep(1.0)
        link.heal()
        fleet.fault("actor-0", "hold", start, lingers=5.0)
        outcomes = await fleet.outcomes("a", "b")
        assert {outcome.attempts for outcome in outcomes.values()} == {1}
        assert len(fleet.begun()) == 2
        assert fleet.violations() == []


async def test_an_actor_told_to_stop_finishes_what_it_runs_and_leaves_the_rest_to_others(open_fleet) -> None:
    async with open_fleet(slots=[1, 1]) as fleet:
        await fleet.submit("held", seconds=2.0, placement=task_pb2.Placement(node_id="actor-0"))
        await fleet.until_begun("held")
        rest = [f"r{number}" for number in range(12)]
        await fleet.submit(*rest, seconds=0.3)
        await fleet.until_begun(*rest, count=1)
        assert await fleet.actor(0).terminate() == 0
        outcomes = await fleet.outcomes("held", *rest)
        assert {(outcome.state, outcome.attempts) for outcome in outcomes.values()} == {
            (task_pb2.TASK_STATE_SUCCEEDED, 1)
        }
        assert outcomes["held"].actor_id == "actor-0"
        assert [each.actor for each in fleet.begun("held")] == ["actor-0"]
        assert fleet.violations() == []
