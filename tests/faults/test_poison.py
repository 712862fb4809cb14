"""A task that kills every actor that runs it, while the scheduler dies too."""

import pytest

from parlmesh.testing import wait_until_async
from parlmesh.v1 import task_pb2

pytestmark = pytest.mark.e2e


async def test_a_task_that_kills_its_actors_is_quarantined_even_if_the_scheduler_dies_too(open_fleet) -> None:
    async with open_fleet(slots=[2]) as fleet:
        await fleet.submit("poison", seconds=600.0)
        for lost in range(1, 4):
            await fleet.until_begun("poison", count=lost)
            if lost == 2:
                # Both die at once: the loss is counted when the actor returns without its lease.
                await fleet.scheduler.kill()
                await fleet.actor().kill()
                await fleet.scheduler.start()
            else:
                await fleet.actor().kill()
            await fleet.actor().start()
        outcome = (await fleet.outcomes("poison"))["poison"]
        assert outcome.state == task_pb2.TASK_STATE_QUARANTINED
        assert len(fleet.begun("poison")) == 3
        # The others go on.
        await fleet.submit("good", kind="mark_inline")
        assert (await fleet.outcomes("good"))["good"].state == task_pb2.TASK_STATE_SUCCEEDED
        await wait_until_async(lambda: fleet.actor().running, 60.0)
