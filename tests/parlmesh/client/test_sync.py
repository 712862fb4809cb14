import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from parlmesh.client import ClientConfig, PARLController, TaskRequest
from parlmesh.client.sync import Controller, LoopThread, fleet
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput, NotFound, Unavailable
from parlmesh.function_tasks import FunctionTask
from parlmesh.handlers import RunsIn
from parlmesh.testing import free_port, serve
from parlmesh.testing.tasks import FakeTasks, succeeded
from parlmesh.wire.tensors import tensors_from_proto


@pytest.fixture
def server() -> Iterator[tuple[FakeTasks, str]]:
    """A fake scheduler on a loop of its own, as a foreign process would be."""
    thread = LoopThread("fake scheduler")
    fake = FakeTasks()
    serving = serve([fake.service])
    address = thread.run(_enter(serving))
    yield fake, address
    thread.run(_exit(serving))
    thread.close()


async def _enter(serving: object) -> str:
    return await serving.__aenter__()  # type: ignore[attr-defined,no-any-return]


async def _exit(serving: object) -> None:
    await serving.__aexit__(None, None, None)  # type: ignore[attr-defined]


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_it_has_every_method_of_the_controller_with_the_same_arguments() -> None:
    for name, method in inspect.getmembers(PARLController, inspect.isfunction):
        if not name.startswith("_"):
            own = inspect.signature(getattr(Controller, name))
            assert list(own.parameters.values()) == list(inspect.signature(method).parameters.values()), name


def test_tasks_run_without_async(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        task_id = controller.submit_task("echo", {"n": 1})
        assert controller.result(task_id).unwrap() == {"n": 1}
        outcomes = controller.execute_parallel([TaskRequest("echo", {"n": n}) for n in range(10)])
        assert [outcome.unwrap()["n"] for outcome in outcomes] == list(range(10))
        completed = controller.as_completed([TaskRequest("noop")] * 3000, limit=100)
        assert {outcome.index for outcome in completed} == set(range(3000))
        mapped = controller.map("echo", ({"n": n} for n in range(3000)), limit=100)
        assert [outcome.unwrap()["n"] for outcome in mapped] == list(range(3000))
        with pytest.raises(NotFound):
            controller.result("nothing")
        with pytest.raises(InvalidInput, match="limit is 0"):
            list(controller.as_completed([], limit=0))


async def test_it_works_inside_a_running_loop_as_in_a_notebook(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller.connect(address) as controller:
        assert controller.execute_parallel([TaskRequest("noop")])[0].ok


def test_leaving_a_loop_early_cancels_the_rest(server: tuple[FakeTasks, str]) -> None:
    fake, address = server
    fake.run = lambda spec: succeeded(spec) if spec.task_id.endswith("-1") else None
    with Controller(address) as controller:
        for outcome in controller.as_completed((TaskRequest("noop") for _ in range(10**9)), limit=5):
            assert outcome.index == 0
            break
        assert controller.get_statistics().client.pending_tasks == 0
    assert not fake.unfinished


def test_an_iteration_ends_with_the_error_of_its_deadline(server: tuple[FakeTasks, str]) -> None:
    fake, address = server
    fake.run = lambda spec: None
    with Controller(address) as controller, pytest.raises(DeadlineExceeded, match="1 tasks had no outcome"):
        list(controller.as_completed([TaskRequest("noop")], timeout=0.05))


def test_the_thread_ends_with_the_controller(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        assert "parlmesh controller" in threads()
    assert "parlmesh controller" not in threads()
    with pytest.raises(Unavailable, match="the controller was closed"):
        controller.submit_task("noop")
    with pytest.raises(Unavailable, match="gave no answer"):
        Controller.connect(f"127.0.0.1:{free_port()}", config=ClientConfig(connect_seconds=0.1))
    assert "parlmesh controller" not in threads()


def test_parameters_may_wait_for_the_same_controller(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        first = controller.map("echo", ({"n": n} for n in range(600)), limit=300)
        second = controller.map("echo", (outcome.unwrap() for outcome in first))
        third = controller.as_completed(TaskRequest("echo", outcome.unwrap()) for outcome in second)
        outcomes = controller.execute_parallel(TaskRequest("echo", outcome.unwrap()) for outcome in third)
        assert sorted(outcome.unwrap()["n"] for outcome in outcomes) == list(range(600))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), KeyError("row")])
def test_what_an_iterator_raises_is_raised_where_the_results_are_read(
    server: tuple[FakeTasks, str], error: BaseException
) -> None:
    def parameters() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        raise error

    _, address = server
    with Controller(address) as controller:
        with pytest.raises(type(error)) as raised:
            list(controller.map("echo", parameters()))
        assert raised.value is error
        assert controller.execute_parallel([TaskRequest("noop")])[0].ok


def test_an_iterator_that_the_collector_finds_in_the_controllers_thread_is_closed(
    server: tuple[FakeTasks, str],
) -> None:
    fake, address = server
    fake.run = lambda spec: succeeded(spec) if spec.task_id.endswith("-1") else None
    with Controller(address) as controller:
        held = [controller.map("echo", [{"n": n} for n in range(9)], limit=5)]
        assert next(held[0]).ok

        async def drop() -> None:
            held.clear()

        controller._thread.run(drop())
        assert controller.get_statistics().client.pending_tasks == 0


def test_a_callback_that_waits_for_the_thread_it_runs_in_is_refused(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        refused: Future[Any] = Future()

        def call() -> None:
            try:
                controller.get_statistics()
            except FailedPrecondition as error:
                refused.set_result(error.reason)

        controller._thread._loop.call_soon_threadsafe(call)
        assert refused.result(60) == "OWN_THREAD"


def test_a_forked_process_is_told_to_open_its_own_controller(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        controller._thread._process -= 1  # as if this process were another one
        with pytest.raises(FailedPrecondition, match="open another one here"):
            controller.submit_task("noop")
        controller.close()
        controller._thread._process += 1
        assert controller.execute_parallel([TaskRequest("noop")])[0].ok


def summed(values: Any) -> float:
    return float(values.sum())


def test_an_array_may_be_changed_as_soon_as_its_call_was_submitted(server: tuple[FakeTasks, str]) -> None:
    fake, address = server
    changed = threading.Event()
    with Controller(address) as controller:
        values = np.ones(4)
        # The loop has something else to do until the array is changed, or until nobody changes it.
        controller._thread._loop.call_soon_threadsafe(lambda: changed.wait(0.2))
        future = controller.submit(FunctionTask(summed, "summed", RunsIn.THREAD), values)
        values[:] = 9
        changed.set()
        future.result(60)
    (spec,) = fake.specs.values()
    assert tensors_from_proto(spec.payload.tensors)["0"].tolist() == [1.0] * 4


def test_an_interrupted_wait_cancels_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread("waits")
    begun, cancelled = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupted() -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    def start(coroutine: Coroutine[Any, Any, None], usual: Callable[..., Any] = thread.start) -> Any:
        future = usual(coroutine)
        future.result = interrupted
        return future

    monkeypatch.setattr(thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        thread.run(wait())
    assert cancelled.wait(60)
    thread.close()


def test_a_fleet_of_a_number_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"address is 5; it must be text such as 'host:50051'"):
        fleet(5)  # type: ignore[arg-type]


def test_a_fleet_says_where_it_is(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        assert repr(controller) == f"<fleet at {address}>"
