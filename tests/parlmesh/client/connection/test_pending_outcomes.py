from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from parlmesh.client import Outcome, OutcomeState
from parlmesh.client.connection.pending_outcomes import Pending
from parlmesh.client.outcomes import refused
from parlmesh.errors import InvalidInput, Unavailable
from parlmesh.v1 import task_pb2 as pb


class Notes:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        assert outcomes
        self.outcomes += outcomes

    @property
    def settled(self) -> list[tuple[str, int]]:
        return [(outcome.task_id, outcome.index) for outcome in self.outcomes]


def end(task_id: str) -> pb.Outcome:
    return pb.Outcome(task_id=task_id, state=pb.TASK_STATE_SUCCEEDED)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_task_is_settled_once_however_often_its_outcome_comes(arrivals: list[int]) -> None:
    pending, notes = Pending(), Notes()
    for number in range(3):
        pending.add(f"t{number}", number, notes, b"")
    pending.take(end(f"t{number}") for number in arrivals)
    known = list(dict.fromkeys(number for number in arrivals if number < 3))
    assert notes.settled == [(f"t{number}", number) for number in known]
    assert (pending.received, pending.foreign) == (len(known), len(arrivals) - len(known))
    assert set(pending) == {f"t{number}" for number in range(3)} - {f"t{number}" for number in known}


def test_all_who_wait_for_one_task_are_told_each_with_its_own_index() -> None:
    pending, sinks = Pending(), [Notes(), Notes(), Notes()]
    for index, sink in enumerate(sinks):
        pending.add("t", index, sink, b"")
    assert all(pending.waits(sink, "t") for sink in sinks)
    pending.take([end("t"), end("t")])
    assert [sink.settled for sink in sinks] == [[("t", 0)], [("t", 1)], [("t", 2)]]


@given(st.lists(st.integers(0, 9), max_size=20))
def test_every_sink_is_told_of_its_own_tasks_alone(arrivals: list[int]) -> None:
    pending, sinks = Pending(), [Notes(), Notes()]
    for number in range(10):
        pending.add(f"t{number}", number, sinks[number % 2], b"")
    pending.take(end(f"t{number}") for number in arrivals)
    for remainder, sink in enumerate(sinks):
        own = dict.fromkeys(number for number in arrivals if number % 2 == remainder)
        assert sink.settled == [(f"t{number}", number) for number in own]


def test_one_who_leaves_takes_only_its_own_tasks_along() -> None:
    pending, leaving, staying = Pending(), Notes(), Notes()
    pending.add("a", 0, leaving, b"")
    pending.add("b", 5, staying, b"")
    pending.add("c", 1, leaving, b"")
    assert pending.leave(leaving) == [("a", 0), ("c", 1)]
    pending.take([end("a"), end("b"), end("c")])
    assert (leaving.settled, staying.settled, pending.foreign) == ([], [("b", 5)], 2)


def test_a_refusal_finds_the_index_of_the_one_who_waits() -> None:
    pending, notes = Pending(), Notes()
    pending.add("t", 4, notes, b"")
    pending.settle(refused("t", 0, InvalidInput("no")))
    pending.settle(refused("t", 0, InvalidInput("no")))
    assert notes.settled == [("t", 4)]
    assert notes.outcomes[0].state is OutcomeState.REFUSED


def test_closing_settles_everything_with_the_reason() -> None:
    pending, notes = Pending(), Notes()
    pending.add("a", 0, notes, b"")
    pending.add("b", 1, notes, b"")
    error = Unavailable("gone")
    pending.close(error)
    assert notes.settled == [("a", 0), ("b", 1)]
    assert {outcome.error for outcome in notes.outcomes} == {error}
    assert len(pending) == 0


def test_the_encoded_task_is_kept_until_the_outcome() -> None:
    pending, notes = Pending(), Notes()
    pending.add("a", 0, notes, b"task")
    assert pending.encoded("a") == b"task"
    pending.take([end("a")])
    assert "a" not in pending
