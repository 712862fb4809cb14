import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actor.metrics import ActorMetrics
from actor.session.attempt_results import AttemptTimeout
from actor.session.slot import Slot
from parlmesh.blobs import Blobs
from parlmesh.handlers import Cancelled, Context, Handler, HandlerError, RunsIn
from parlmesh.testing import wait_until_async
from parlmesh.v1.fleet_service_pb2 import Assignment, Lease
from parlmesh.v1.task_pb2 import Payload
from parlmesh.wire import payload_from_proto, payload_to_proto

_SHORT = 0.05

_PROCESS_HANDLERS = """
import os, signal, time
import pathlib

class Pid:
    kind = "pid"
    runs_in = "process"
    def run(self, parameters, tensors, context):
        print("must not reach the pipe")
        return {"pid": os.getpid(), "slot": context.slot, "actor_id": context.actor_id, "task_id": context.task_id}

class Dies:
    kind = "dies"
    runs_in = "process"
    def run(self, parameters, tensors, context):
        if parameters["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)

class Hangs:
    kind = "hangs"
    runs_in = "process"
    def run(self, parameters, tensors, context):
        pathlib.Path(parameters["pid_file"]).write_text(str(os.getpid()))
        time.sleep(600)

class Raises:
    kind = "raises"
    runs_in = "process"
    def run(self, parameters, tensors, context):
        raise ValueError("as asked")
"""


@pytest.fixture
def metrics() -> ActorMetrics:
    return ActorMetrics(CollectorRegistry())


@pytest.fixture
async def slot(metrics: ActorMetrics) -> AsyncIterator[Slot]:
    slot = Slot(3, actor_id="a", stop_seconds=_SHORT, metrics=metrics, blobs=Blobs())
    yield slot
    await slot.close()


@pytest.fixture
def process_handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "slot_process_handlers.py").write_text(_PROCESS_HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import slot_process_handlers  # type: ignore[import-not-found]

    return slot_process_handlers


def _assignment(**parameters: object) -> Assignment:
    lease = Lease(task_id="task-1", lease_id=1, attempt=1)
    return Assignment(lease=lease, payload=payload_to_proto(parameters))


async def _answer(slot: Slot, handler: Handler, **parameters: object) -> dict[str, Any]:
    answer = await slot.run(handler, _assignment(**parameters), None)
    assert isinstance(answer, Payload)
    return payload_from_proto(answer)[0]


class InThread:
    kind = "thread"
    runs_in = RunsIn.THREAD

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        return {"thread": threading.current_thread().name, "slot": context.slot}


async def test_a_thread_handler_runs_in_the_slots_own_thread_every_time(slot: Slot) -> None:
    first, second = await _answer(slot, InThread()), await _answer(slot, InThread())
    assert first == second == {"thread": "slot-a-3", "slot": 3}


class Waits:
    """Ends when it is told to stop."""

    kind = "waits"
    runs_in = RunsIn.THREAD

    def __init__(self) -> None:
        self.started = threading.Event()
        self.stopped = threading.Event()

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        self.started.set()
        try:
            while True:
                context.check()
        except Cancelled:
            self.stopped.set()
            raise


async def test_cancelling_stops_a_thread_handler_that_asks(slot: Slot, metrics: ActorMetrics) -> None:
    handler = Waits()
    attempt = asyncio.create_task(slot.run(handler, _assignment(), None))
    await wait_until_async(handler.started.is_set, 60.0)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert handler.stopped.is_set()
    assert (await _answer(slot, InThread()))["thread"] == "slot-a-3"
    assert _abandoned(metrics, "waits") == 0


async def test_a_thread_handler_past_its_time_is_stopped(slot: Slot) -> None:
    handler = Waits()
    with pytest.raises(AttemptTimeout, match=r"waits ran longer than the allowed 0\.05 seconds"):
        await slot.run(handler, _assignment(), _SHORT)
    assert handler.stopped.is_set()


class Stuck:
    """Never asks whether it should stop."""

    kind = "stuck"
    runs_in = RunsIn.THREAD

    def __init__(self) -> None:
        self.release = threading.Event()
        self.thread: threading.Thread | None = None

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        self.thread = threading.current_thread()
        self.release.wait()
        return {}


async def test_a_stuck_thread_is_abandoned_and_the_slot_goes_on(slot: Slot, metrics: ActorMetrics) -> None:
    handler = Stuck()
    with pytest.raises(AttemptTimeout):
        await slot.run(handler, _assignment(), _SHORT)
    assert _abandoned(metrics, "stuck") == 1
    assert (await _answer(slot, InThread()))["slot"] == 3
    handler.release.set()
    thread = handler.thread
    assert thread is not None
    await wait_until_async(lambda: not thread.is_alive(), 60.0)


class OnLoop:
    kind = "loop"
    runs_in = RunsIn.LOOP

    def __init__(self, *, obeys: bool = True) -> None:
        self.obeys = obeys
        self.started = asyncio.Event()
        self.cancelled = False
        self.release = asyncio.Event()

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            if self.obeys:
                raise
            await self.release.wait()
        return {"done": True}


async def test_cancelling_cancels_a_loop_handler(slot: Slot) -> None:
    handler = OnLoop()
    attempt = asyncio.create_task(slot.run(handler, _assignment(), None))
    await handler.started.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert handler.cancelled


async def test_a_loop_handler_that_ignores_cancellation_is_abandoned(slot: Slot, metrics: ActorMetrics) -> None:
    handler = OnLoop(obeys=False)
    with pytest.raises(AttemptTimeout):
        await slot.run(handler, _assignment(), _SHORT)
    assert _abandoned(metrics, "loop") == 1
    handler.release.set()


async def test_a_loop_handler_that_cancels_itself_fails(slot: Slot) -> None:
    class CancelsItself:
        kind = "odd"
        runs_in = RunsIn.LOOP

        async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> dict[str, Any]:
            raise asyncio.CancelledError

    with pytest.raises(HandlerError, match="odd cancelled itself"):
        await slot.run(CancelsItself(), _assignment(), None)


class Raises:
    kind = "raises"

    def __init__(self, runs_in: RunsIn, error: BaseException) -> None:
        self.runs_in = runs_in
        self._error = error

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Context) -> Any:
        if self.runs_in == RunsIn.LOOP:
            return self._later()
        raise self._error

    async def _later(self) -> dict[str, Any]:
        raise self._error


@pytest.mark.parametrize("runs_in", [RunsIn.LOOP, RunsIn.THREAD])
async def test_whatever_a_handler_raises_ends_its_attempt_only(slot: Slot, runs_in: RunsIn) -> None:
    with pytest.raises(HandlerError, match="raised an exception that no program should catch: GeneratorExit"):
        await slot.run(Raises(runs_in, GeneratorExit()), _assignment(), None)


async def test_a_thread_handler_may_raise_what_a_future_does_not_take(slot: Slot) -> None:
    with pytest.raises(HandlerError, match="StopIteration: 4"):
        await slot.run(Raises(RunsIn.THREAD, StopIteration(4)), _assignment(), None)


async def test_a_process_handler_keeps_its_process_between_attempts(slot: Slot, process_handlers: Any) -> None:
    first = await _answer(slot, process_handlers.Pid())
    second = await _answer(slot, process_handlers.Pid())
    assert first == second
    assert first == {"pid": first["pid"], "slot": 3, "actor_id": "a", "task_id": "task-1"}


@pytest.mark.parametrize(("how", "text"), [("kill", "was killed by SIGKILL"), ("exit", "ended with exit code 7")])
async def test_a_handler_that_kills_its_process_fails_alone(
    slot: Slot, process_handlers: Any, how: str, text: str
) -> None:
    with pytest.raises(HandlerError, match=f"the process of handler dies {text}") as caught:
        await slot.run(process_handlers.Dies(), _assignment(how=how), None)
    assert caught.value.reason == "ACTOR_LOST"
    assert caught.value.retryable
    assert (await _answer(slot, process_handlers.Pid()))["slot"] == 3


async def test_an_exception_in_a_process_is_a_typed_failure(slot: Slot, process_handlers: Any) -> None:
    with pytest.raises(HandlerError, match="ValueError: as asked") as caught:
        await slot.run(process_handlers.Raises(), _assignment(), None)
    assert caught.value.reason == "HANDLER_ERROR"


async def test_a_hanging_process_is_killed(
    slot: Slot, process_handlers: Any, tmp_path: Path, metrics: ActorMetrics
) -> None:
    pid_file = tmp_path / "pid"
    attempt = asyncio.create_task(slot.run(process_handlers.Hangs(), _assignment(pid_file=str(pid_file)), None))
    await wait_until_async(lambda: pid_file.exists() and pid_file.read_text(), 60.0)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    pid = pid_file.read_text()
    await wait_until_async(lambda: not Path(f"/proc/{pid}").exists(), 60.0)
    assert _abandoned(metrics, "hangs") == 0


def _abandoned(metrics: ActorMetrics, kind: str) -> float:
    value: float = metrics.abandoned.labels(kind)._value.get()
    return value
