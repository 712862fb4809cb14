"""The controller for scripts and notebooks without async: the same methods, on its own event loop.

with Controller() as controller:
    controller.initialize(num_workers=4)
    print(controller.execute_parallel([TaskRequest("echo", {"n": 1})]))
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast, overload

import numpy as np

from parlmesh.blobs import Reference
from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable
from parlmesh.function_tasks import FunctionTask, stop_import
from parlmesh.rpc.event_loop import loop_factory
from parlmesh.security import SecurityConfig
from parlmesh.types import Array

from .config import ClientConfig
from .controller import DEFAULTS, NO_SECURITY, P, PARLController, R
from .experience_upload import Step, check_steps
from .feed import Raised, fed
from .fleet_info import ActorInfo, PARLStats
from .function_calls import call_of, requests_of
from .learner_calls import PolicyUpdate
from .map_and_gather import IN_FLIGHT, enumerated, listed
from .outcomes import Outcome
from .task_request import ANYWHERE, NOTHING, Placement, Priority, TaskRequest, owned, with_own_arrays

T = TypeVar("T")

_READ_AHEAD = 1000
_LOOK_SECONDS = 0.1


class LoopFuture(Future[T]):
    """What another thread waits for. The thread that would bring it is refused, because its wait would never end."""

    thread: "LoopThread"

    def result(self, timeout: float | None = None) -> T:
        self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check()
        return super().exception(timeout)

    def _check(self) -> None:
        if not self.done():
            self.thread.check_elsewhere()


class LoopThread:
    """Runs coroutines for other threads until `close`."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._closed = False
        self._process = os.getpid()
        started = threading.Event()
        # A daemon: a program that ends without closing must not hang on it.
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the thread itself, as a future's callback is."""
        return threading.current_thread() is self._thread

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return os.getpid() != self._process

    @property
    def is_closed(self) -> bool:
        """Whether it runs nothing any more."""
        return self._closed

    def check_elsewhere(self) -> None:
        """FailedPrecondition in the thread itself."""
        if self.is_current:
            raise FailedPrecondition(
                "a future's callback waits for the thread it is called by, which would never end; let another thread "
                "do it, or only submit",
                reason="OWN_THREAD",
            )

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs a coroutine; cancelling the future cancels it."""
        if self._closed:
            coroutine.close()
            raise Unavailable("the controller was closed", reason="CLOSED")
        if self.is_elsewhere:
            coroutine.close()
            raise FailedPrecondition(
                f"process {os.getpid()} was forked from {self._process}, which opened this controller and alone may "
                "use it; open another one here",
                reason="FORKED",
            )
        future: Any = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        future.__class__, future.thread = LoopFuture, self  # asyncio lets nobody else make it
        return cast("Future[T]", future)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. When the waiting thread is interrupted, the coroutine is cancelled."""
        try:
            self.check_elsewhere()
        except FailedPrecondition:
            coroutine.close()
            raise
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """The items of an asynchronous iterator; items that are ready together cross threads together."""
        reader = _Reader(source)
        try:
            while items := self._next(reader):
                yield from items
        finally:
            if self.is_current:  # an abandoned iterator, found by the garbage collector
                reader.leave()
            elif not self._closed and not self.is_elsewhere:
                self.run(reader.close())

    def _next(self, reader: "_Reader[T]") -> list[T]:
        try:
            return self.run(reader.items())
        except Raised as carrier:
            error = carrier.error
        raise error

    def close(self) -> None:
        """Cancels what still runs, and ends the thread."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self, started: threading.Event) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._main(started))

    async def _main(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._stop.wait()


class _Reader(Generic[T]):
    """Reads an iterator a little ahead, so that a batch costs one crossing between threads."""

    def __init__(self, source: Callable[[], AsyncGenerator[T, None]]) -> None:
        self._source = source
        self._queue: asyncio.Queue[tuple[T, ...]] = asyncio.Queue(_READ_AHEAD)
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    async def items(self) -> list[T]:
        """At least one item, and all that are ready; none at the end."""
        if self._task is None:
            self._task = asyncio.create_task(self._read(), name="parlmesh reads ahead")
        batch = list(await self._queue.get())
        while batch and not self._queue.empty():
            item = self._queue.get_nowait()
            if not item:
                self._queue.put_nowait(item)  # the end is for the next call
                break
            batch += item
        if not batch and self._error is not None:
            raise self._error
        return batch

    def leave(self) -> None:
        """Stops reading; on the loop."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stops reading; the iterator is closed when this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _read(self) -> None:
        try:
            async with aclosing(self._source()) as source:
                async for item in source:
                    await self._queue.put((item,))
        except Exception as error:
            self._error = error
        await self._queue.put(())


class Controller:
    """A PARLController whose methods block. It may be used from several threads."""

    def __init__(
        self,
        address: str = "",
        *,
        learner: str = "",
        security: SecurityConfig = NO_SECURITY,
        config: ClientConfig = DEFAULTS,
    ) -> None:
        self._controller = PARLController(address, learner=learner, security=security, config=config)
        self._thread = LoopThread("parlmesh controller")

    def __repr__(self) -> str:
        return f"<fleet at {self.address or 'no address yet'}>"

    @property
    def address(self) -> str:
        """See `PARLController.address`."""
        return self._controller.address

    @classmethod
    def connect(
        cls,
        address: str,
        *,
        learner: str = "",
        security: SecurityConfig = NO_SECURITY,
        config: ClientConfig = DEFAULTS,
    ) -> Self:
        """A controller of a running fleet; see `PARLController.connect`."""
        return cls(address, learner=learner, security=security, config=config).__enter__()

    def initialize(
        self,
        num_workers: int = 100,
        *,
        actor: Mapping[str, Any] | None = None,
        scheduler: Mapping[str, Any] | None = None,
        processes: int | None = None,
    ) -> int:
        """See `PARLController.initialize`."""
        return self._thread.run(
            self._controller.initialize(num_workers, actor=actor, scheduler=scheduler, processes=processes)
        )

    @property
    def trouble(self) -> str:
        """See `PARLController.trouble`."""
        return self._controller.trouble

    def close(self) -> None:
        """Ends every wait, the local fleet when there is one, and the loop."""
        if self._thread.is_closed or self._thread.is_elsewhere:
            return  # of a forked process: they belong to the one that it was forked from
        self._thread.check_elsewhere()
        try:
            self._thread.run(self._controller.close())
        finally:
            self._thread.close()

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._controller.__aenter__())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def submit_task(
        self,
        kind: str | TaskRequest,
        parameters: Mapping[str, Any] = NOTHING,
        tensors: Mapping[str, Array] = NOTHING,
        *,
        priority: Priority = Priority.NORMAL,
        dependencies: Sequence[str] = (),
        placement: Placement = ANYWHERE,
        queue_timeout: float | None = None,
        run_timeout: float | None = None,
        max_attempts: int = 0,
        task_id: str = "",
    ) -> str:
        """See `PARLController.submit_task`."""
        return self._thread.run(
            self._controller.submit_task(
                kind,
                parameters,
                tensors,
                priority=priority,
                dependencies=dependencies,
                placement=placement,
                queue_timeout=queue_timeout,
                run_timeout=run_timeout,
                max_attempts=max_attempts,
                task_id=task_id,
            )
        )

    def submit_tasks(self, requests: Sequence[TaskRequest]) -> list[str]:
        """See `PARLController.submit_tasks`."""
        return self._thread.run(self._controller.submit_tasks(requests))

    def result(self, task_id: str, timeout: float | None = None) -> Outcome:
        """See `PARLController.result`."""
        return self._thread.run(self._controller.result(task_id, timeout))

    def execute_parallel(
        self, tasks: Iterable[TaskRequest], *, limit: int = IN_FLIGHT, timeout: float | None = None
    ) -> list[Outcome]:
        """See `PARLController.execute_parallel`."""
        return self._thread.run(self._controller.execute_parallel(listed(tasks), limit=limit, timeout=timeout))

    def as_completed(
        self, tasks: Iterable[TaskRequest], *, limit: int = IN_FLIGHT, timeout: float | None = None
    ) -> Iterator[Outcome]:
        """See `PARLController.as_completed`. Leaving the loop early cancels the rest."""
        requests = fed(enumerated(tasks), [tasks], owned)
        return self._thread.iterate(lambda: self._controller._completed(requests, limit, timeout))

    def put(self, array: Array) -> Reference:
        """See `PARLController.put`."""
        return self._thread.run(self._controller.put(array))

    def submit(self, function: FunctionTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """See `PARLController.submit`; the future is one of `concurrent.futures`."""
        call = call_of(function, args, kwargs, self._controller._line().submissions.new_id())

        calls: list[TaskRequest] = []
        sources: list[Any] = []
        written = threading.Event()

        async def value() -> R:
            try:
                # Once submitted, nothing keeps the call: it may hold futures, and they hold their results.
                sources.append(self._controller._future_of(calls.pop()))
            finally:
                written.set()
            answer: R = await sources[0]
            return answer

        arrays = any(isinstance(each, np.ndarray) for each in call.tensors.values())
        if arrays and self._thread.is_current:
            call = replace(call, tensors={name: copy(each) for name, each in call.tensors.items()})
        calls.append(call)
        future: Any = self._thread.start(value())
        if arrays and not self._thread.is_current:
            # The caller may change them as soon as this returns.
            while not written.wait(_LOOK_SECONDS) and not future.done():
                pass
        # This future keeps alive what the controller's future keeps alive.
        future.task_id, future.sources = call.task_id, sources
        return cast("Future[R]", future)

    @overload
    def map(
        self,
        kind: str,
        parameters: Iterable[Mapping[str, Any]],
        *,
        limit: int = IN_FLIGHT,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Iterator[Outcome]: ...
    @overload
    def map(
        self,
        kind: FunctionTask[..., R],
        parameters: Iterable[Any],
        *more: Iterable[Any],
        limit: int = IN_FLIGHT,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Iterator[R]: ...
    def map(
        self,
        kind: str | FunctionTask[..., Any],
        parameters: Iterable[Any],
        *more: Iterable[Any],
        limit: int = IN_FLIGHT,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> Iterator[Any]:
        """See `PARLController.map`."""
        requests = fed(requests_of(kind, parameters, more, priority), [parameters, *more], with_own_arrays)
        return self._thread.iterate(lambda: self._controller._mapped(kind, requests, limit, timeout))

    def cancel(self, task_ids: Iterable[str]) -> list[str]:
        """See `PARLController.cancel`."""
        return self._thread.run(self._controller.cancel(task_ids))

    def explain(self, task_id: str) -> str:
        """See `PARLController.explain`."""
        return self._thread.run(self._controller.explain(task_id))

    def get_statistics(self) -> PARLStats:
        """See `PARLController.get_statistics`."""
        return self._thread.run(self._controller.get_statistics())

    def list_actors(self) -> list[ActorInfo]:
        """See `PARLController.list_actors`."""
        return self._thread.run(self._controller.list_actors())

    def pause(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """See `PARLController.pause`."""
        return self._thread.run(self._controller.pause(actor_ids))

    def resume(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """See `PARLController.resume`."""
        return self._thread.run(self._controller.resume(actor_ids))

    def drain(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """See `PARLController.drain`."""
        return self._thread.run(self._controller.drain(actor_ids))

    def reset(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """See `PARLController.reset`."""
        return self._thread.run(self._controller.reset(actor_ids))

    def quarantine(self, node_ids: Iterable[str], reason: str) -> list[ActorInfo]:
        """See `PARLController.quarantine`."""
        return self._thread.run(self._controller.quarantine(node_ids, reason))

    def release(self, node_ids: Iterable[str]) -> list[ActorInfo]:
        """See `PARLController.release`."""
        return self._thread.run(self._controller.release(node_ids))

    def rebalance_load(self) -> int:
        """See `PARLController.rebalance_load`."""
        return self._thread.run(self._controller.rebalance_load())

    def update_policy(
        self, experiences: str | Iterable[Step | Sequence[Any]] = (), *, run_id: str = "", timeout: float = 30.0
    ) -> PolicyUpdate:
        """See `PARLController.update_policy`."""
        check_steps(experiences)
        steps = experiences if isinstance(experiences, str) else list(experiences)
        return self._thread.run(self._controller.update_policy(steps, run_id=run_id, timeout=timeout))

    def pause_run(self, run_id: str = "") -> None:
        """See `PARLController.pause_run`."""
        self._thread.run(self._controller.pause_run(run_id))

    def resume_run(self, run_id: str = "") -> None:
        """See `PARLController.resume_run`."""
        self._thread.run(self._controller.resume_run(run_id))

    def get_trace(self, *, seconds: int = 60) -> str:
        """See `PARLController.get_trace`."""
        return self._thread.run(self._controller.get_trace(seconds=seconds))

    def save_trace(self, path: str | Path, *, seconds: int = 60) -> Path:
        """See `PARLController.save_trace`."""
        return self._thread.run(self._controller.save_trace(path, seconds=seconds))


def fleet(address: str = "", *, workers: int = 0, security: SecurityConfig = NO_SECURITY) -> Controller:
    """A fleet for a `with` block: the one at `address`, or a private one on this machine that ends with the block.

    A private fleet has one worker per core unless `workers` says otherwise, and knows every function decorated with
    @parlmesh.task before this call.
    """
    stop_import()
    if not isinstance(address, str):
        raise InvalidInput(
            f"address is {address!r:.60}; it must be text such as 'host:50051', or left out (workers={address!r:.20}?)",
            reason="INVALID_ADDRESS",
        )
    controller = Controller(address, security=security)
    if not address:
        try:
            controller.initialize(workers or os.cpu_count() or 1)
        except BaseException:
            controller.close()
            raise
    return controller
