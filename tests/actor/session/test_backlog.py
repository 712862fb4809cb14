import hypothesis.strategies as st
from hypothesis import given

from actor.session.backlog import Backlog
from parlmesh.v1.fleet_service_pb2 import Assignment, Lease
from parlmesh.v1.task_pb2 import Priority


def _assignment(lease_id: int, priority: int) -> Assignment:
    return Assignment(lease=Lease(lease_id=lease_id), priority=Priority.ValueType(priority))


@given(st.lists(st.integers(0, 5)))
def test_the_most_urgent_leaves_first_and_equals_leave_in_order(priorities: list[int]) -> None:
    backlog = Backlog()
    for lease_id, priority in enumerate(priorities):
        backlog.add(_assignment(lease_id, priority))
    left = []
    while (assignment := backlog.take()) is not None:
        left.append(assignment.lease.lease_id)
    urgency = [priority or Priority.PRIORITY_NORMAL for priority in priorities]
    assert left == sorted(range(len(priorities)), key=lambda lease_id: (-urgency[lease_id], lease_id))


def test_a_priority_from_a_newer_contract_is_read_as_normal() -> None:
    backlog = Backlog()
    backlog.add(_assignment(1, 77))
    backlog.add(_assignment(2, Priority.PRIORITY_HIGH))
    backlog.add(_assignment(3, Priority.PRIORITY_LOW))
    assert [backlog.take().lease.lease_id for _ in range(3)] == [2, 1, 3]  # type: ignore[union-attr]


def test_nothing_is_left_after_clear() -> None:
    backlog = Backlog()
    backlog.add(_assignment(1, 3))
    backlog.clear()
    assert backlog.take() is None
    assert len(backlog) == 0
