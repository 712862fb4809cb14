from collections.abc import Callable

import pytest

from learner.experience.asked_rollouts import AskedRollouts
from parlmesh.errors import FleetError
from parlmesh.testing.clocks import HandClock
from parlmesh.types import Fragment, Trajectory


def asked(clock: Callable[[], float] = lambda: 0.0, **nodes: str) -> AskedRollouts:
    return AskedRollouts(
        60.0,
        node_of=lambda actor_id: nodes.get(actor_id, ""),
        is_leftover=lambda task_id: task_id.startswith("old"),
        forgive=lambda actor_id: None,
        clock=clock,
    )


def trajectory(task_id: str, node_id: str = "node") -> Trajectory:
    return Trajectory("run", "actor", 1, 1, 1, Fragment({}, []), task_id, node_id=node_id)


@pytest.mark.parametrize(
    ("task_id", "node_id", "reason"),
    [("other", "node", "UNASKED"), ("old-1", "node", "OLD_TASK"), ("asked", "another", "WRONG_NODE")],
)
def test_a_proven_sender_delivers_only_what_its_own_actor_was_asked_for(
    task_id: str, node_id: str, reason: str
) -> None:
    rollouts = asked(actor="node")
    rollouts.ask(["asked"])
    rollouts.check(trajectory("asked"))
    rollouts.check(trajectory(task_id, node_id=""))
    with pytest.raises(FleetError) as refused:
        rollouts.check(trajectory(task_id, node_id))
    assert refused.value.reason == reason


def test_a_rollout_delivers_once_and_is_outstanding_no_more() -> None:
    rollouts = asked()
    rollouts.ask(["a", "b"])
    rollouts.deliver(trajectory("a"))
    assert rollouts.outstanding == {"b"}
    with pytest.raises(FleetError, match="'a' was delivered before"):
        rollouts.check(trajectory("a"))


def test_a_rollout_that_ends_and_of_which_nothing_came_is_told_from_others() -> None:
    rollouts = asked()
    rollouts.ask(["a", "b"])
    rollouts.note_arrival("a")
    assert rollouts.end("a", timed_out=False).heard_of
    assert not rollouts.end("b", timed_out=False).heard_of
    assert rollouts.outstanding == set()


def test_a_rollout_that_delivered_in_time_or_failed_or_was_never_asked_for_is_not_slow() -> None:
    clock = HandClock()
    rollouts = asked(clock)
    for number in range(16):
        rollouts.ask([str(number)])
        clock.advance(0.01)
        rollouts.deliver(trajectory(str(number)))
    rollouts.ask(["slow", "failed", "delivered"])
    rollouts.deliver(trajectory("delivered"))
    assert rollouts.deadline.seconds == 10.0
    assert not rollouts.end("failed", timed_out=False).slow
    assert not rollouts.end("delivered", timed_out=True).slow
    assert not rollouts.end("unknown", timed_out=True).slow
    assert rollouts.deadline.seconds == 10.0
    assert rollouts.end("slow", timed_out=True).slow
    assert rollouts.deadline.seconds == 20.0


def test_what_is_outstanding_is_remembered_however_many_come_after_it() -> None:
    rollouts = asked()
    rollouts.ask(["waited for"])
    for number in range(10_100):
        rollouts.ask([str(number)])
        rollouts.end(str(number), timed_out=False)
    assert not rollouts.end("waited for", timed_out=False).heard_of
    assert rollouts.end("1", timed_out=False).heard_of
