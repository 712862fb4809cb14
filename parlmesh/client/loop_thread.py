"""An event loop in a thread of its own, for callers that have none or cannot use theirs."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from parlmesh.errors import Unavailable

T = TypeVar("T")

_READ_AHEAD = 1000


class LoopThread:
    """Runs coroutines for other threads from its making to `close`."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._closed = False
        started = threading.Event()
        # A daemon: a program that ends without closing must not hang on it.
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. When the waiting thread is interrupted, the coroutine is cancelled."""
        if self._closed:
            coroutine.close()
            raise Unavailable("the controller was closed", reason="CLOSED")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
        """The items of an asynchronous iterator; those that are ready together cross the threads together."""
        reader = _Reader(source)
        try:
            while items := self.run(reader.items()):
                yield from items
        finally:
            if not self._closed:
                self.run(reader.close())

    def close(self) -> None:
        """Cancels what still runs, and ends the thread."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self, started: threading.Event) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
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


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
