"""The controller for scripts and notebooks without async: the same methods, on its own event loop.

with Controller() as controller:
    controller.initialize(num_workers=4)
    print(controller.execute_parallel([TaskRequest("echo", {"n": 1})]))
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

import numpy as np

from parlmesh.blobs import Reference
from parlmesh.errors import InvalidInput
from parlmesh.function_tasks import FunctionTask, stop_import
from parlmesh.optional_packages import SERVER, need
from parlmesh.security import SecurityConfig
from parlmesh.types import Array

from .config import ClientConfig
from .controller import DEFAULTS, NO_SECURITY, P, PARLController, R
from .feed import fed
from .fleet_info import ActorInfo, PARLStats
from .function_calls import call_of, requests_of
from .learner.learner_calls import PolicyUpdate
from .learner.own_steps import Step, check_steps
from .loop_thread import LoopFuture, LoopThread
from .map_and_gather import IN_FLIGHT, enumerated, listed
from .outcomes import Outcome
from .task_request import ANYWHERE, NOTHING, Placement, Priority, TaskRequest, owned, with_own_arrays

T = TypeVar("T")

_LOOK_SECONDS = 0.1


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
        # A signal's handler may close it in the thread that is closing it.
        self._closing = threading.RLock()

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
        with self._closing:
            if self._thread.is_closed:
                return  # by another thread
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

    def fetch(self, outcome: Outcome) -> None:
        """See `PARLController.fetch`."""
        self._thread.run(self._controller.fetch(outcome))

    def submit(self, function: FunctionTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> LoopFuture[R]:
        """See `PARLController.submit`; the future is one of `concurrent.futures` that a coroutine can await too."""
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
        return cast("LoopFuture[R]", future)

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
    """The fleet at `address`, or a private one on this machine; it ends with its `with` block, or with `close()`.

    A private fleet has one worker per core unless `workers` says otherwise, and knows every function decorated with
    @parlmesh.task before this call.
    """
    stop_import()
    if not isinstance(address, str):
        raise InvalidInput(
            f"address is {address!r:.60}; it must be text such as 'host:50051', or left out (workers={address!r:.20}?)",
            reason="INVALID_ADDRESS",
        )
    if address:
        return Controller.connect(address, security=security)
    need("a fleet on this machine", "actor", *SERVER, "gymnasium", "safetensors")
    controller = Controller(security=security)
    try:
        controller.initialize(workers or os.cpu_count() or 1)
    except BaseException:
        controller.close()
        raise
    return controller
