import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any
from weakref import ref

import numpy as np
import pytest

from parlmesh.client import ClientConfig, PARLController, TaskRequest
from parlmesh.client.loop_thread import LoopThread
from parlmesh.client.sync import Controller, fleet
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput, NotFound, Unavailable
from parlmesh.function_tasks import FunctionTask
from parlmesh.handlers import RunsIn
from parlmesh.testing import free_port, serve, wait_until
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


def test_a_future_may_be_dropped_as_soon_as_another_call_has_it(server: tuple[FakeTasks, str]) -> None:
    """With it goes its result, unless the controller knows that the call needs it."""
    fake, address = server
    blocked, unblocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        unblocked.wait(60)

    task = FunctionTask(summed, "summed", RunsIn.THREAD)
    with Controller(address) as controller:
        first = controller.submit(task, 1)
        first.result(60)
        fake.run = lambda spec: None
        held = ref(first)
        controller._thread._loop.call_soon_threadsafe(block)
        assert blocked.wait(60)
        second = controller.submit(task, first)
        del first
        gc.collect()
        assert held() is not None, "the call is not submitted yet"
        unblocked.set()
        wait_until(lambda: len(fake.specs) == 2, 60)
        wait_until(lambda: gc.collect() >= 0 and held() is None, 60)
        second.cancel()


@pytest.mark.parametrize("size", [8, 1 << 16, 5 << 20])
def test_an_iterator_may_use_what_it_gave_again_once_its_next_item_is_wanted(
    server: tuple[FakeTasks, str], size: int
) -> None:
    fake, address = server

    def refilled() -> Iterator[Any]:
        array = np.zeros(size, np.uint8)
        for number in range(9):
            array[:] = number
            yield array

    def requests() -> Iterator[TaskRequest]:
        parameters = {"n": [0]}
        for number, array in enumerate(refilled()):
            parameters["n"][0] = number
            yield TaskRequest("echo", parameters, {"0": array})

    def given() -> Iterator[dict[str, Any]]:
        return (dict(request.parameters) for request in requests())

    def arrays() -> list[list[int]]:
        found = [tensors_from_proto(spec.payload.tensors)["0"] for spec in fake.specs.values()]
        fake.specs.clear()
        return [[int(array[0]), int(array[-1])] for array in found]

    numbers = list(range(9))
    shown = [[number] * 2 for number in numbers]
    with Controller(address, config=ClientConfig(message_bytes=16 << 20)) as controller:
        list(controller.map(FunctionTask(summed, "summed", RunsIn.THREAD), refilled()))
        assert arrays() == shown
        outcomes = sorted(controller.as_completed(requests()), key=lambda outcome: outcome.index)
        assert [outcome.unwrap()["n"][0] for outcome in outcomes] == numbers
        assert arrays() == shown
        assert [outcome.unwrap()["n"][0] for outcome in controller.execute_parallel(requests())] == numbers
        assert arrays() == shown
        assert [outcome.unwrap()["n"][0] for outcome in controller.map("echo", given())] == numbers


def test_a_callback_that_waits_for_a_future_is_refused(server: tuple[FakeTasks, str]) -> None:
    fake, address = server
    fake.run = lambda spec: succeeded(spec) if spec.task_id.endswith("-1") else None
    task = FunctionTask(summed, "summed", RunsIn.THREAD)
    reasons: list[str] = []
    ended = threading.Event()
    with Controller(address) as controller:

        def waits(done: "Future[Any]") -> None:
            done.result()
            other = controller.submit(task, 2)
            for wait in (other.result, other.exception, controller.close):
                try:
                    wait()
                except FailedPrecondition as error:
                    reasons.append(error.reason)
            other.cancel()
            ended.set()

        first = controller.submit(task, 1)
        first.add_done_callback(waits)
        assert ended.wait(60), "the controller's thread waits for itself"
        assert reasons == ["OWN_THREAD"] * 3
        assert controller.get_statistics().client.pending_tasks == 0, "it goes on"


def test_a_controller_may_be_closed_twice(server: tuple[FakeTasks, str]) -> None:
    _, address = server
    with Controller(address) as controller:
        controller.close()
    controller.close()
    with pytest.raises(Unavailable, match="the controller was closed"):
        controller.submit_task("noop")
    Controller(address).close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), ValueError("bad")])
def test_what_a_callback_raises_is_logged_and_ends_nothing(
    server: tuple[FakeTasks, str], error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def exits(future: Future[Any]) -> None:
        raise error

    with Controller(server[1]) as controller:
        called = threading.Event()
        future = controller._thread.start(asyncio.sleep(0.01, 3))
        future.add_done_callback(exits)
        future.add_done_callback(lambda future: called.set())
        assert called.wait(10)
        assert future.result() == 3
        assert controller.submit_task("noop")
    assert "exception calling callback" in caplog.text


def test_several_threads_may_close_it_and_all_return_once_it_is_closed(server: tuple[FakeTasks, str]) -> None:
    controller = Controller.connect(server[1])
    inner, begun, goes_on = controller._controller, threading.Event(), threading.Event()
    close, calls = inner.close, []

    async def slow() -> None:
        calls.append(1)
        begun.set()
        await asyncio.to_thread(goes_on.wait)
        await close()

    inner.close = slow  # type: ignore[method-assign]
    ended: list[bool] = []
    closers = [threading.Thread(target=lambda: ended.append(_closes(controller))) for _ in range(3)]
    for closer in closers:
        closer.start()
    assert begun.wait(10)
    assert not ended
    goes_on.set()
    for closer in closers:
        closer.join(10)
    assert (ended, len(calls)) == ([True] * 3, 1)


def _closes(controller: Controller) -> bool:
    controller.close()
    return controller._thread.is_closed


def test_calls_that_the_end_of_the_thread_interrupts_say_that_the_controller_was_closed() -> None:
    thread = LoopThread("ends")
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    future = thread.start(endless())
    assert begun.wait(10)
    own = thread.start(asyncio.sleep(1000))
    own.cancel()
    thread.close()
    for read in (future.result, future.exception):
        with pytest.raises(Unavailable, match="the controller was closed"):
            read(10)
    with pytest.raises(CancelledError):
        own.result(10)


def test_what_is_started_while_the_thread_is_told_to_end_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread("ends")
    closer = threading.Thread(target=thread.close)
    hand_over = asyncio.run_coroutine_threadsafe

    def late(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> Any:
        closer.start()
        closer.join(0.5)  # without a lock, the thread has ended by now
        return hand_over(coroutine, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    future = thread.start(asyncio.sleep(1000))
    closer.join(10)
    with pytest.raises(Unavailable, match="the controller was closed"):
        future.result(10)


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
