"""joblib over a fleet: a search gives the local result, local calls are reported, failures arrive."""

from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.svm import SVC

import parlmesh
import parlmesh.joblib
from parlmesh.client.sync import Controller
from parlmesh.errors import FleetError, InvalidInput

pytestmark = pytest.mark.e2e

TASK_MODULES = ("parlmesh.joblib.remote_functions",)


@parlmesh.task(kind="joblib_squared")
def squared(number: int) -> int:
    """A function of the program's own."""
    return number * number


@pytest.fixture(scope="module")
def fleet() -> Iterator[Controller]:
    with parlmesh.fleet(workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    rows, labels = load_digits(return_X_y=True)
    return rows[:400], labels[:400]


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    keys = [key for key in theirs if "time" not in key]
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[key], theirs[key]) for key in keys)


def test_a_grid_search_on_digits_equals_the_local_one_exactly(fleet: Controller, digits: tuple[Any, Any]) -> None:
    search = GridSearchCV(
        SVC(), {"C": [0.1, 10], "gamma": [1e-3, 1e-2]}, scoring=["accuracy", "f1_macro"], refit="accuracy"
    )
    theirs = search.fit(*digits).cv_results_
    before = fleet.get_statistics().completed_tasks
    with joblib.parallel_config("parlmesh", fleet=fleet):
        ours = search.fit(*digits).cv_results_
    assert same(ours, theirs)
    assert fleet.get_statistics().completed_tasks - before == 4 * 5


def test_labels_that_are_words_are_predicted_as_words(fleet: Controller, digits: tuple[Any, Any]) -> None:
    rows, labels = digits
    words = np.array([f"digit {label}" for label in labels])
    theirs = cross_val_predict(SVC(), rows, words, cv=3)
    with joblib.parallel_config("parlmesh", fleet=fleet):
        assert np.array_equal(cross_val_predict(SVC(), rows, words, cv=3), theirs)


def test_calls_that_nodes_do_not_support_run_locally_and_say_so(fleet: Controller, digits: tuple[Any, Any]) -> None:
    with joblib.parallel_config("parlmesh", fleet=fleet), pytest.warns(RuntimeWarning, match="runs in this process"):
        forest = RandomForestClassifier(4, random_state=0).fit(*digits)
    assert np.array_equal(
        forest.predict(digits[0]), RandomForestClassifier(4, random_state=0).fit(*digits).predict(digits[0])
    )


def test_what_a_node_raises_is_raised_here_with_its_type(fleet: Controller, digits: tuple[Any, Any]) -> None:
    search = GridSearchCV(SVC(), {"C": [-1.0]}, error_score="raise", cv=2)
    with joblib.parallel_config("parlmesh", fleet=fleet), pytest.raises(FleetError, match="InvalidParameterError"):
        search.fit(*digits)


def test_a_function_that_is_not_a_task_is_refused_by_name(fleet: Controller) -> None:
    with (
        joblib.parallel_config("parlmesh", fleet=fleet),
        pytest.raises(InvalidInput, match="same is not a task; decorate"),
    ):
        joblib.Parallel()(joblib.delayed(same)({}, {}) for _ in range(2))


def test_a_call_among_the_arguments_of_another_call_ends(fleet: Controller) -> None:
    def powers(number: int) -> int:
        return int(joblib.Parallel()(joblib.delayed(squared)(each) for each in (number, number))[1])

    with joblib.parallel_config("parlmesh", fleet=fleet):
        found = joblib.Parallel(timeout=60)(joblib.delayed(squared)(powers(number)) for number in range(8))
    assert found == [number**4 for number in range(8)]


def test_a_fleet_that_is_given_with_the_call_is_used(fleet: Controller) -> None:
    before = fleet.get_statistics().completed_tasks
    call = joblib.Parallel(backend="parlmesh", fleet=fleet)
    assert call(joblib.delayed(squared)(number) for number in range(4)) == [0, 1, 4, 9]
    assert fleet.get_statistics().completed_tasks - before == 4
    with pytest.raises(InvalidInput, match=r"fleet is 'host:1'; open it with parlmesh.fleet"):
        joblib.Parallel(backend="parlmesh", fleet="host:1")(joblib.delayed(squared)(number) for number in range(4))
