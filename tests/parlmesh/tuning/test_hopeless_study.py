import pytest

from parlmesh.errors import FailedPrecondition
from parlmesh.tuning.hopeless_study import FAILURES_AT_START, Prospects


def test_a_study_is_given_up_when_its_first_trials_all_fail() -> None:
    prospects = Prospects()
    for number in range(FAILURES_AT_START):
        prospects.check()
        prospects.failed(f"reason {number}")
    with pytest.raises(FailedPrecondition, match="5 trials failed and none succeeded; the last: reason 4") as caught:
        prospects.check()
    assert caught.value.reason == "TRIALS_FAIL"


def test_one_success_is_enough_to_go_on() -> None:
    prospects = Prospects()
    prospects.succeeded()
    for _ in range(2 * FAILURES_AT_START):
        prospects.failed("diverged")
    prospects.check()
