from hypothesis import given
from hypothesis import strategies as st

from parlmesh.client import TaskRequest
from parlmesh.client.map_and_gather import parents_first


def request(name: int, parents: set[int]) -> TaskRequest:
    return TaskRequest("noop", task_id=f"t{name}", dependencies=[f"t{parent}" for parent in sorted(parents)])


@st.composite
def acyclic(draw: st.DrawFn) -> list[TaskRequest]:
    """Parents have a lower rank; ranks are shuffled over the list."""
    ranks = draw(st.permutations(range(draw(st.integers(0, 12)))))
    requests = []
    for rank in ranks:
        lower = st.sets(st.integers(0, rank - 1), max_size=3) if rank else st.just(set[int]())
        requests.append(request(rank, draw(lower)))
    return requests


@given(acyclic())
def test_every_task_comes_once_and_after_its_parents(requests: list[TaskRequest]) -> None:
    order = parents_first(requests)
    assert sorted(order) == list(range(len(requests)))
    seen: set[str] = set()
    for index in order:
        assert set(requests[index].dependencies) <= seen
        seen.add(requests[index].task_id)


def test_tasks_without_dependencies_stay_where_they_are() -> None:
    requests = [TaskRequest("noop", task_id=name) for name in "cab"]
    assert list(parents_first(requests)) == [0, 1, 2]


def test_only_the_child_that_stood_before_its_parent_moves() -> None:
    requests = [request(1, {3}), request(2, set()), request(3, set()), request(4, set())]
    assert list(parents_first(requests)) == [1, 2, 0, 3]


def test_a_parent_outside_the_call_orders_nothing() -> None:
    requests = [TaskRequest("noop", dependencies=["elsewhere"]), TaskRequest("noop")]
    assert list(parents_first(requests)) == [0, 1]


def test_members_of_a_cycle_come_last() -> None:
    requests = [request(1, {2}), request(2, {1}), request(3, set())]
    assert list(parents_first(requests)) == [2, 0, 1]
