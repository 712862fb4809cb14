"""A joblib backend that runs every delayed call as a task of a fleet."""

import atexit
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from joblib import cpu_count
from joblib.parallel import ParallelBackendBase

from parlmesh.blobs import Reference
from parlmesh.client.sync import Controller
from parlmesh.client.sync import fleet as open_fleet
from parlmesh.errors import InvalidInput
from parlmesh.function_tasks import FunctionTask
from parlmesh.types import Array

from .estimators import unpacked
from .remote_functions import call_function, function_name, packed_call, stays_here

_LEAST_PUT_BYTES = 1 << 16
# Ends that are told at once. Some may have to wait: joblib locks a call while it makes another one among the arguments,
# and its ends wait until that one has ended.
_MOST_ENDS = 64
_told: set[str] = set()
_own_fleet: Controller | None = None
_own_fleet_lock = threading.Lock()


class FleetBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib has no types
    """joblib makes it for `parallel_config("parlmesh", fleet=fleet)`; without `fleet` it starts one for the program."""

    supports_retrieve_callback = True
    uses_threads = False
    supports_sharedmem = False
    default_n_jobs = -1

    def __init__(self, fleet: Controller | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._fleet = _checked(fleet)
        self._pending: set[Future[Any]] = set()
        self._arrays: dict[int, tuple[Array, Reference]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._ends: ThreadPoolExecutor | None = None

    def configure(self, n_jobs: int = 1, parallel: Any = None, fleet: Controller | None = None, **options: Any) -> int:
        """The number of jobs of one call; `Parallel(backend="parlmesh", fleet=fleet)` names its fleet here."""
        self._fleet = _checked(fleet) or self._fleet
        return int(super().configure(n_jobs, parallel, **options))

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """The requested number; for -1 the fleet's slots, at least 2, because joblib bypasses the fleet for 1."""
        if n_jobs == 0:
            raise ValueError("n_jobs is 0; it must be a number of jobs, or -1 for every slot of the fleet")
        if n_jobs is not None and n_jobs > 0:
            return n_jobs
        return max(2, sum(actor.slots for actor in self._controller().list_actors()))

    def submit(self, func: Any, callback: Callable[[Any], None] | None = None) -> "Future[list[Any]]":
        """One future for a batch of calls; it is done when all calls have ended."""
        batch = _Batch([self._started(*item) for item in func.items], self._in_thread)
        if callback is not None:
            batch.future.add_done_callback(callback)
        batch.watch()
        return batch.future

    def retrieve_result_callback(self, out: "Future[list[Any]]") -> list[Any]:
        """Results of a batch's calls; raises the exception of one that failed."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancels calls that have not ended."""
        for future in list(self._pending):
            future.cancel()

    def stop_call(self) -> None:
        """Releases the arrays of this call."""
        self._arrays.clear()

    def terminate(self) -> None:
        """Ends the threads of local calls and of ends."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        if self._ends is not None:
            self._ends.shutdown(wait=False)
            self._ends = None

    def _started(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Future[Any]":
        try:
            future = self._future(function, args, kwargs)
        except Exception as error:  # joblib loses exceptions raised while it starts further calls, and waits for ever
            future = Future()
            future.set_exception(error)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _future(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Future[Any]":
        if isinstance(function, FunctionTask):
            return self._controller().submit(function, *args, **kwargs)
        if reason := stays_here(function, kwargs):
            _tell(f"{function_name(function)} runs in this process: {reason}")
            return self._local_threads().submit(function, *args, **kwargs)
        try:
            return self._controller().submit(call_function, packed_call(function, args, kwargs, self._put))
        except InvalidInput as error:
            raise InvalidInput(
                f"{function_name(function)} cannot run on a fleet: {error}", reason=error.reason
            ) from None

    def _put(self, array: Array) -> Array | Reference:
        """Writes a large array once for all calls that take it as an argument."""
        if array.nbytes < _LEAST_PUT_BYTES:
            return array
        if id(array) not in self._arrays:
            # The array is kept with its reference, so that its id is not reused.
            self._arrays[id(array)] = (array, self._controller().put(np.ascontiguousarray(array)))
        return self._arrays[id(array)][1]

    def _controller(self) -> Controller:
        if self._fleet is None:
            self._fleet = _fleet_of_this_program()
        return self._fleet

    def _local_threads(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(cpu_count(), thread_name_prefix="parlmesh joblib")
        return self._threads

    def _in_thread(self, settle: Callable[[], None]) -> None:
        """Settles a batch outside the controller's thread: joblib then starts the next calls, which wait for it."""
        if self._ends is None:
            self._ends = ThreadPoolExecutor(_MOST_ENDS, thread_name_prefix="parlmesh joblib ends")
        try:
            self._ends.submit(settle)
        except RuntimeError:  # the pool has just been shut down, so no more calls are started
            settle()


class _Batch:
    """Joins the futures of several calls into one with the list of their results."""

    def __init__(self, calls: list["Future[Any]"], run: Callable[[Callable[[], None]], None]) -> None:
        self.future: Future[list[Any]] = Future()
        self._run = run
        self._calls = calls
        self._open = len(calls)
        self._lock = threading.Lock()

    def watch(self) -> None:
        self.future.set_running_or_notify_cancel()
        for call in self._calls:
            call.add_done_callback(self._ended)

    def _ended(self, call: "Future[Any]") -> None:
        with self._lock:
            self._open -= 1
            last = self._open == 0
        if last:
            self._run(self._settle)

    def _settle(self) -> None:
        try:
            results = [unpacked(each.result()) for each in self._calls]
        except BaseException as error:  # including CancelledError
            self.future.set_exception(error)
        else:
            self.future.set_result(results)


def _checked(fleet: Controller | None) -> Controller | None:
    if fleet is not None and not hasattr(fleet, "submit"):
        raise InvalidInput(f"fleet is {fleet!r:.60}; open it with parlmesh.fleet(address)", reason="INVALID_FLEET")
    return fleet


def _tell(sentence: str) -> None:
    """Warns once per program, whatever filters are active: a forest would warn for every tree."""
    if sentence not in _told:
        _told.add(sentence)
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)


def _fleet_of_this_program() -> Controller:
    """A fleet that is started once and ends with the program."""
    global _own_fleet
    with _own_fleet_lock:
        if _own_fleet is None:
            _own_fleet = open_fleet()
            atexit.register(_own_fleet.close)
        return _own_fleet
