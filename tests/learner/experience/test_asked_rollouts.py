import pytest

from learner.experience.asked_rollouts import AskedRollouts
from parlmesh.errors import FleetError
from parlmesh.types import Fragment, Trajectory


def asked(**nodes: str) -> AskedRollouts:
    return AskedRollouts(
        60.0,
        node_of=lambda actor_id: nodes.get(actor_id, ""),
        is_leftover=lambda task_id: task_id.startswith("old"),
        forgive=lambda actor_id: None,
        clock=lambda: 0.0,
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
    rollouts.came("a")
    assert rollouts.end("a")
    assert not rollouts.end("b")
    assert rollouts.outstanding == set()
