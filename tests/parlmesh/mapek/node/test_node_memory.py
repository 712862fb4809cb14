"""A node's memory: exclusive leases, and answers that are given twice but executed once."""

from parlmesh.mapek.node.node_memory import NodeState
from parlmesh.testing.clocks import HandClock


def test_a_lease_excludes_another_loop_until_it_ends(tmp_path):
    clock = HandClock()
    first, second = (NodeState(tmp_path, "node", clock) for _ in range(2))
    assert first.acquire("a", 10.0).granted
    refused = second.acquire("b", 10.0)
    assert (refused.granted, refused.owner, refused.seconds) == (False, "a", 10.0)
    assert first.acquire("a", 10.0).fence == 1
    clock.advance(10.1)
    assert second.acquire("b", 10.0).fence == 2


def test_a_reading_that_comes_twice_changes_the_state_once(tmp_path):
    state = NodeState(tmp_path, "node")

    def count(states):
        number = states.get("count", 0) + 1
        return {"count": number}, {"number": number}

    assert [state.step("loop", reading, count)["number"] for reading in ("1", "1", "2")] == [1, 1, 2]


def test_states_of_two_loops_are_apart_and_survive(tmp_path):
    def add(states):
        return {"sum": states.get("sum", 0) + 1}, {"sum": states.get("sum", 0) + 1}

    NodeState(tmp_path, "node").step("a", "a1", add)
    NodeState(tmp_path, "node").step("b", "b1", add)
    assert NodeState(tmp_path, "node").step("a", "a2", add) == {"sum": 2}


def test_the_name_of_a_node_never_leaves_the_folder(tmp_path):
    NodeState(tmp_path / "state", "../../etc/passwd").acquire("a", 1.0)
    assert {path.parent for path in tmp_path.rglob("*.sqlite")} == {tmp_path / "state"}
