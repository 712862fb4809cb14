"""The backend between joblib and a controller: which thread does what, and that nothing is lost on the way."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import joblib
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_validate

import parlmesh.joblib  # noqa: F401 registers the backend
from parlmesh.client.sync import Controller
from parlmesh.errors import InvalidInput
from parlmesh.function_tasks import FunctionTask
from parlmesh.handlers import RunsIn
from parlmesh.joblib.backend import FleetBackend


class Fleet:
    """A controller that runs calls in its only thread; a method that waits must not be called from there."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="controller")
        self.putting: set[str] = set()

    def submit(self, function: FunctionTask[..., Any], *args: Any) -> "Future[Any]":
        function.arguments(*args)
        return self._thread.submit(function.function, *args)

    def put(self, array: Any) -> Any:
        self.putting.add(threading.current_thread().name.partition("_")[0])
        return array

    def close(self) -> None:
        self._thread.shutdown()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.close()


def test_large_arrays_of_later_calls_are_written_outside_the_controllers_thread(fleet: Fleet) -> None:
    rows = np.arange(20_000.0).reshape(-1, 1)
    with joblib.parallel_config("parlmesh", fleet=cast(Controller, fleet), n_jobs=2):
        scores = cross_validate(Ridge(), rows, rows[:, 0], cv=8)["test_score"]
    assert np.allclose(scores, 1.0)
    assert fleet.putting == {"MainThread", "parlmesh joblib ends"}


def doubled(number: Any) -> Any:
    return 2 * number


def test_a_later_call_that_cannot_be_sent_is_raised_and_not_waited_for(fleet: Fleet) -> None:
    task = FunctionTask(doubled, "doubled", RunsIn.THREAD)
    calls = [joblib.delayed(task)(n if n < 9 else {1}) for n in range(10)]
    with (
        joblib.parallel_config("parlmesh", fleet=cast(Controller, fleet), n_jobs=2),
        pytest.raises(InvalidInput, match="is a set"),
    ):
        joblib.Parallel(pre_dispatch=2)(calls)


def test_an_address_instead_of_a_fleet_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"fleet is 'host:50051'; open it with parlmesh\.fleet\(address\)"):
        FleetBackend("host:50051")  # type: ignore[arg-type]
