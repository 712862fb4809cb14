"""Iterators of requests, for a window on an event loop. Each may use its arrays again once its next item is wanted.

An iterator that is read in its own thread may block, wait for results of the same fleet, or raise any exception.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any, Generic, TypeVar, cast

import numpy as np

from .task_request import TaskRequest, array_bytes

T = TypeVar("T")
Numbered = tuple[int, TaskRequest]
Own = Callable[[TaskRequest], TaskRequest]

# Reading these never waits.
_AT_HAND = (list, tuple, range, dict, set, frozenset, str, bytes, np.ndarray)
_END = object()
# Items with this many bytes of arrays are not copied: the next is read once they have been written.
_LENT_BYTES = 4 << 20


class Raised(Exception):
    """Carries an iterator's exception through the event loop, which SystemExit would end."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(type(error)))
        self.error = error


class Feed(Generic[T]):
    """An iterator over the items that have been read so far; `more` waits for further ones."""

    def __init__(self, items: Iterable[T], own: Callable[[T], T | None] = lambda item: item) -> None:
        """`own` makes an item independent of the iterator; None lends it until `more` is called after it was taken."""
        self._items = items
        self._own = own
        self._lent = False
        self._returned = Semaphore(0)
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
            # Read before the items, because the last items, and a lent one, arrive before the end.
            over, lent = self._over, self._lent
            if self._ready:
                return True
            if lent:
                self._lent = False
                self._returned.release()
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
        self._returned.release()

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
                    item = _END if self._over else next(source, _END)
                    if item is _END or self._over:
                        return
                    self._hand_over(cast(T, item))
                    del item
        except BaseException as error:  # it is raised where the results are read
            self._failure = error
        finally:
            self._over = True
            self._tell()

    def _hand_over(self, item: T) -> None:
        own = self._own(item)
        self._ready.append(item if own is None else own)
        self._read += 1
        # Only after the item: if `more` finds it lent and not there, it was taken.
        self._lent = own is None
        self._tell()
        if own is None:
            self._returned.acquire()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._arrived.set()


class Lent(Generic[T]):
    """An iterator that is read on the loop itself; `own` makes an item independent of it."""

    def __init__(self, items: Iterator[T], own: Callable[[T], T]) -> None:
        self._items = items
        self.own = own

    def __iter__(self) -> Iterator[T]:
        return self._items

    def __next__(self) -> T:
        return next(self._items)


def fed(items: Iterator[Numbered], sources: Iterable[Any], own: Own) -> "Iterator[Numbered] | Feed[Numbered]":
    """The items as they are if reading their sources never waits, else a feed of them."""
    return items if at_hand(sources) else Feed(items, lambda item: _own_or_lent(item, own))


def lent(items: Iterator[Numbered], sources: Iterable[Any], own: Own) -> "Iterator[Numbered] | Lent[Numbered]":
    """The same for who reads them on the loop."""
    return items if at_hand(sources) else Lent(items, lambda item: (item[0], own(item[1])))


def at_hand(sources: Iterable[Any]) -> bool:
    """Whether reading them never waits, nor changes what was read before."""
    return all(type(source) in _AT_HAND for source in sources)


def _own_or_lent(item: Numbered, own: Own) -> Numbered | None:
    index, request = item
    return None if array_bytes(request) >= _LENT_BYTES else (index, own(request))
