"""An event loop in a thread of its own, and the futures that other threads wait for."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar, cast

from parlmesh.errors import FailedPrecondition, FleetError, Unavailable, without_frames
from parlmesh.exception_text import sentence
from parlmesh.rpc.event_loop import loop_factory

from .feed import Raised

T = TypeVar("T")

_READ_AHEAD = 1000


class LoopFuture(Future[T]):
    """What another thread waits for. The thread that would bring it is refused, because its wait would never end."""

    thread: "LoopThread"
    given_up = False
    """Whether a caller cancelled it; otherwise the end of the thread did."""

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        super().add_done_callback(partial(_called, fn))

    def cancel(self) -> bool:
        self.given_up = self.given_up or not self.thread.is_closed
        return super().cancel()

    def result(self, timeout: float | None = None) -> T:
        self._check()
        try:
            return super().result(timeout)
        except CancelledError:
            self._check_open()
            raise
        except FleetError as error:
            raise without_frames(error) from error.__cause__

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check()
        try:
            return super().exception(timeout)
        except CancelledError:
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self.thread.is_closed and not self.given_up:
            raise _closed() from None

    def __await__(self) -> Generator[Any, None, T]:
        """In an event loop of the program's own, such as a notebook's."""
        return asyncio.wrap_future(self).__await__()

    def _check(self) -> None:
        if not self.done():
            self.thread.check_elsewhere()


class LoopThread:
    """Runs coroutines for other threads until `close`."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._closed = False
        # Nothing is started once the loop is told to stop, because nobody would end it. The garbage collector may start
        # something in a thread that holds the lock.
        self._starting = threading.RLock()
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

    def start(self, coroutine: Coroutine[Any, Any, T]) -> LoopFuture[T]:
        """Runs a coroutine; cancelling the future cancels it."""
        if self.is_elsewhere:
            coroutine.close()
            raise FailedPrecondition(
                f"process {os.getpid()} was forked from {self._process}, which opened this controller and alone may "
                "use it; open another one here",
                reason="FORKED",
            )
        with self._starting:
            if self._closed:
                coroutine.close()
                raise _closed()
            future: Any = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        future.__class__, future.thread = LoopFuture, self  # asyncio lets nobody else make it
        return cast("LoopFuture[T]", future)

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
        with self._starting:
            closed, self._closed = self._closed, True
        if not closed:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self, started: threading.Event) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._main(started))

    async def _main(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        started.set()
        await self._stop.wait()


def _called(callback: Callable[[Future[T]], object], future: Future[T]) -> None:
    """A callback that calls sys.exit would end the loop; like other errors of callbacks, it is logged."""
    try:
        callback(future)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"a callback tried to exit: {sentence(error)}") from error


def _closed() -> Unavailable:
    return Unavailable("the controller was closed", reason="CLOSED")


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
