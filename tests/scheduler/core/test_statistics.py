import pytest

from scheduler.core.actors.placement import ActorCommand
from scheduler.core.statistics import worker_utilization
from scheduler.core.task import Task
from tests.scheduler.conftest import Harness


def test_utilization_counts_slots_of_ready_actors_only(harness: Harness) -> None:
    actors = harness.core.life.fleet.actors
    assert worker_utilization(actors.values()) == 0.0
    harness.connect("a", slots=4)
    harness.connect("b", slots=4)
    harness.submit(*[Task(str(number), "noop") for number in range(3)])
    assert worker_utilization(actors.values()) == pytest.approx(3 / 8)
    idle = min(actors.values(), key=lambda actor: len(actor.leases))
    harness.command(ActorCommand.PAUSE, idle.actor_id)
    assert worker_utilization(actors.values()) == pytest.approx((3 - len(idle.leases)) / 4)
