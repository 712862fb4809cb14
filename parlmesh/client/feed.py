"""Reads an iterator in its own thread, for a window on an event loop.

The iterator may then block, wait for results of the same fleet, or raise any exception.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar, cast

import numpy as np

T = TypeVar("T")

# Reading these never waits.
_AT_HAND = (list, tuple, range, dict, set, frozenset, str, bytes, np.ndarray)
_END = object()


class Raised(Exception):
    """Carries an iterator's exception through the event loop, which SystemExit would end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(type(error)))
        self.error = error


class Feed(Generic[T]):
    """An iterator over the items that have been read so far; `more` waits for further ones."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self._ready: deque[T] = deque()
        self._wanted: SimpleQueue[int] = SimpleQueue()
        self._asked = self._read = 0
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._arrived: asyncio.Event
        self._told = False
        self._over = False
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come."""
        return self._over and not self._ready and self._failure is None

    async def more(self, count: int) -> bool:
        """Waits for an item, and has at most `count` read; False at the end. Raises `Raised`."""
        self._start()
        while True:
            over = self._over  # read before the items, because the last items arrive before the end
            if self._ready:
                return True
            if over and self._failure is not None:
                raise Raised(self._failure)
            if over:
                return False
            if (missing := count - (self._asked - self._read)) > 0:
                self._asked += missing
                self._wanted.put(missing)
            await self._arrived.wait()
            self._arrived.clear()

    def close(self) -> None:
        """Stops reading; does not wait for an item that is being read."""
        self._over = True
        self._wanted.put(0)

    def _start(self) -> None:
        if self._thread is None:
            self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
            # A daemon: the iterator may block for ever.
            self._thread = Thread(target=self._serve, name="parlmesh reads arguments", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        try:
            source = iter(self._items)
            while (count := self._wanted.get()) and not self._over:
                for _ in range(count):
                    item = next(source, _END)
                    if item is _END or self._over:
                        return
                    self._ready.append(cast(T, item))
                    self._read += 1
                    self._tell()
        except BaseException as error:  # it is raised where the results are read
            self._failure = error
        finally:
            self._over = True
            self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._arrived.set()


def fed(items: Iterator[T], sources: Iterable[Any]) -> "Iterator[T] | Feed[T]":
    """The items as they are if reading their sources never waits, else a feed of them."""
    return items if all(type(source) in _AT_HAND for source in sources) else Feed(items)
