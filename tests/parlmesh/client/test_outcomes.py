import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from parlmesh.client import Outcome, OutcomeState
from parlmesh.client.outcomes import abandoned, refused
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, FleetError, InvalidInput, Unavailable
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_to_proto


def success() -> Outcome:
    message = pb.Outcome(
        task_id="t",
        state=pb.TASK_STATE_SUCCEEDED,
        result=payload_to_proto({"n": 1}, {"x": np.arange(3)}),
        attempts=2,
        actor_id="a-1",
    )
    message.queued.FromMilliseconds(1500)
    message.ran.FromMilliseconds(250)
    return Outcome("t", 7, message)


def failure(reason: str, state: pb.TaskState.ValueType = pb.TASK_STATE_FAILED) -> Outcome:
    ending = pb.Failure(reason=reason, message="it broke", retryable=True)
    return Outcome("t", 0, pb.Outcome(task_id="t", state=state, failure=ending))


def test_a_success_has_a_value_and_no_error() -> None:
    outcome = success()
    assert (outcome.ok, outcome.state, outcome.error) == (True, OutcomeState.SUCCEEDED, None)
    assert outcome.value == outcome.unwrap() == {"n": 1}
    assert outcome.tensors["x"].tolist() == [0, 1, 2]
    assert (outcome.index, outcome.attempts, outcome.actor_id) == (7, 2, "a-1")
    assert (outcome.queued_seconds, outcome.ran_seconds) == (1.5, 0.25)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("HANDLER_ERROR", FleetError),
        ("INVALID_PARAMETERS", InvalidInput),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("QUEUE_TIMEOUT", DeadlineExceeded),
        ("ACTOR_LOST", Unavailable),
        ("DEPENDENCY_FAILED", FailedPrecondition),
        ("UNKNOWN_KIND", FailedPrecondition),
        ("A_REASON_OF_TOMORROW", FleetError),
    ],
)
def test_a_failure_is_a_typed_error_and_no_value(reason: str, kind: type[FleetError]) -> None:
    outcome = failure(reason)
    assert (outcome.ok, outcome.value, outcome.tensors) == (False, None, {})
    assert type(outcome.error) is kind
    assert outcome.error is not None
    assert (outcome.error.message, outcome.error.reason) == ("it broke", reason)
    assert outcome.error.metadata == {"task_id": "t", "retryable": "True"}
    with pytest.raises(kind, match="it broke"):
        outcome.unwrap()


@pytest.mark.parametrize("state", ["CANCELLED", "QUARANTINED", "FAILED"])
def test_every_bad_end_has_an_error_even_without_a_reason(state: str) -> None:
    outcome = Outcome("t", 0, pb.Outcome(task_id="t", state=pb.TaskState.Value(f"TASK_STATE_{state}")))
    assert outcome.state is OutcomeState[state]
    assert outcome.error is not None
    assert (outcome.error.reason, outcome.error.message) == (state, f"task t ended {state.lower()}")


@pytest.mark.parametrize(("make", "state"), [(refused, OutcomeState.REFUSED), (abandoned, OutcomeState.ABANDONED)])
def test_an_end_that_no_scheduler_sent_carries_its_error(
    make: Callable[[str, int, FleetError], Outcome], state: OutcomeState
) -> None:
    error = InvalidInput("no such kind")
    outcome = make("t", 3, error)
    assert (outcome.state, outcome.ok, outcome.value, outcome.error) == (state, False, None, error)
    assert (outcome.attempts, outcome.actor_id, outcome.ran_seconds) == (0, "", 0.0)


def test_an_outcome_cannot_be_changed() -> None:
    outcome = success()
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.task_id = "u"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        outcome.tensors["x"][0] = 1


def test_the_same_end_at_another_place_keeps_everything_else() -> None:
    outcome = refused("t", 0, InvalidInput("no"))
    assert outcome.at(0) is outcome
    moved = outcome.at(4)
    assert (moved.index, moved.task_id, moved.state, moved.error) == (4, "t", outcome.state, outcome.error)


def test_it_reads_well() -> None:
    assert repr(success()) == "Outcome('t', succeeded, value={'n': 1})"
    assert repr(failure("HANDLER_ERROR")) == "Outcome('t', failed, error=FleetError('it broke'))"
