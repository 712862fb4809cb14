"""One slot: runs an attempt in the thread, process or loop that its handler asks for, and ends it when it must."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias

from parlmesh.blobs import Blobs
from parlmesh.exception_text import sentence
from parlmesh.handlers import Context, Handler, HandlerError, RunsIn, Tail
from parlmesh.telemetry import get_logger
from parlmesh.v1.fleet_service_pb2 import Assignment
from parlmesh.v1.task_pb2 import Payload

from ..metrics import ActorMetrics
from .attempt_results import AttemptTimeout, call_async, call_in_thread, no_exit
from .slot_process import SlotProcess

log = get_logger("parlmesh.actor")

_Call: TypeAlias = tuple[Callable[[], Payload | Tail], "asyncio.Future[Payload | Tail]"]


@dataclass(frozen=True, slots=True)
class _Execution:
    """A running handler: its end, how to ask it to stop, and how to continue without it."""

    end: "asyncio.Future[Payload | Tail]"
    stop: Callable[[], object]
    abandon: Callable[[], object]


class Slot:
    """One slot of an actor. Its thread and processes are kept between attempts and replaced if they do not stop."""

    def __init__(self, index: int, *, actor_id: str, stop_seconds: float, metrics: ActorMetrics, blobs: Blobs) -> None:
        self.index = index
        self._blobs = blobs
        self._actor_id = actor_id
        self._stop_seconds = stop_seconds
        self._metrics = metrics
        self._thread: SlotThread | None = None
        self._processes: dict[str, SlotProcess] = {}
        self._tasks: set[asyncio.Task[Payload | Tail]] = set()

    async def run(self, handler: Handler, assignment: Assignment, timeout_seconds: float | None) -> Payload | Tail:
        """The handler's answer; AttemptTimeout past the timeout. When cancelled, stops the handler first."""
        lease = assignment.lease
        context = Context(task_id=lease.task_id, attempt=lease.attempt, actor_id=self._actor_id, slot=self.index)
        execution = self._start(handler, assignment, context)
        try:
            done, _ = await asyncio.wait({execution.end}, timeout=timeout_seconds)
            if not done:
                raise AttemptTimeout(f"{handler.kind} ran longer than the allowed {timeout_seconds:g} seconds")
        finally:
            if not execution.end.done():
                context.cancelled = True
                await self._stop(execution, handler.kind, lease.task_id)
        if execution.end.cancelled():
            raise HandlerError(f"handler {handler.kind} cancelled itself", retryable=True)
        error = execution.end.exception()
        if error is not None and not isinstance(error, Exception):
            raise no_exit(handler.kind, error) from error
        return execution.end.result()

    def reset(self) -> None:
        """Drops the thread and the processes; an attempt that still runs there ends by itself."""
        if self._thread is not None:
            self._thread.retire()
            self._thread = None
        for process in self._processes.values():
            process.kill()
        self._processes.clear()

    async def close(self) -> None:
        """Drops the thread and waits until the processes have ended."""
        processes = list(self._processes.values())
        self.reset()
        for process in processes:
            await process.ended()

    def _start(self, handler: Handler, assignment: Assignment, context: Context) -> _Execution:
        if handler.runs_in == RunsIn.THREAD:
            if self._thread is None:
                self._thread = SlotThread(f"slot-{self._actor_id}-{self.index}")
            end = self._thread.submit(lambda: call_in_thread(handler, assignment, context, self._blobs))
            return _Execution(end, lambda: None, self.reset)
        if handler.runs_in == RunsIn.PROCESS:
            process = self._processes.get(handler.kind)
            if process is None:
                process = SlotProcess(handler, actor_id=self._actor_id, slot=self.index, blobs=self._blobs)
                self._processes[handler.kind] = process
            task = self._task(process.run(assignment))
            return _Execution(task, lambda: _kill(process, task), task.cancel)
        task = self._task(call_async(handler, assignment, context, self._blobs))
        return _Execution(task, task.cancel, task.cancel)

    def _task(self, work: Coroutine[Any, Any, Payload]) -> "asyncio.Task[Payload | Tail]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stop(self, execution: _Execution, kind: str, task_id: str) -> None:
        execution.stop()
        # Any answer is too late; asking for the exception keeps asyncio from reporting it as never retrieved.
        execution.end.add_done_callback(lambda end: end.cancelled() or end.exception())
        try:
            await asyncio.wait({execution.end}, timeout=self._stop_seconds)
        finally:
            if not execution.end.done():
                execution.abandon()
                self._metrics.abandoned.labels(kind).inc()
                log.warning("handler_abandoned", kind=kind, task_id=task_id, waited_seconds=self._stop_seconds)


def _kill(process: SlotProcess, task: "asyncio.Task[Payload | Tail]") -> None:
    process.kill()
    task.cancel()  # it may still be starting the process


class SlotThread:
    """Runs calls one after another and delivers their ends to the event loop that made it. It can be left behind when
    its handler does not stop; it cannot be killed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[_Call | None] = SimpleQueue()
        # A daemon: a handler that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Payload | Tail]) -> "asyncio.Future[Payload | Tail]":
        """Runs `call` after those submitted before."""
        future = self._loop.create_future()
        self._inbox.put((call, future))
        return future

    def retire(self) -> None:
        """Ends the thread once its current call returns; does not wait for it."""
        self._inbox.put(None)

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not None:
            call, future = item
            answer: Payload | Tail | None = None
            failure: BaseException | None = None
            try:
                answer = call()
            except BaseException as error:  # whatever it is, it ends the attempt and not the thread
                failure = error
            try:
                self._loop.call_soon_threadsafe(_deliver, future, answer, failure)
            except RuntimeError:  # the loop is closed: the process is ending and nothing waits
                return
            del call, future, answer, failure, item


def _deliver(
    future: "asyncio.Future[Payload | Tail]", answer: Payload | Tail | None, failure: BaseException | None
) -> None:
    if future.done():
        return
    if failure is None:
        assert answer is not None
        future.set_result(answer)
    elif isinstance(failure, StopIteration):  # a future refuses it
        substitute = HandlerError(sentence(failure), retryable=False)
        substitute.__cause__ = failure
        future.set_exception(substitute)
    else:
        future.set_exception(failure)
