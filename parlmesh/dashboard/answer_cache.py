"""Caches answers so that many pages ask only once. Knows nothing of gRPC or pages."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")

MOST_ANSWERS = 512
AT_ONCE = 4
"""Questions in flight at the same time, however many pages are open."""
REST = 40.0
"""An answer is kept this many times as long as it took, so that no question uses more than a fortieth of the time."""
LONGEST_REST_SECONDS = 2.0


class SharedAnswers:
    """Keeps answers until they are too old; all callers in the meantime get the same answer or the same error.

    Errors are kept like answers, so that a service that is down is not asked more often than one that is up.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: OrderedDict[Hashable, tuple[float, asyncio.Future[Any]]] = OrderedDict()
        self._rests: dict[Hashable, float] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self.asked = 0
        """Questions that were asked, not answered from the cache."""

    async def get(self, key: Hashable, age_seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer for the key; asks again if the last answer is older than `age_seconds`."""
        now = self._clock()
        found = self._answers.get(key)
        if found is not None and now - found[0] < max(age_seconds, self._rests.get(key, 0.0)):
            return cast(T, await asyncio.shield(found[1]))
        answer: asyncio.Future[T] = asyncio.ensure_future(self._put(key, ask))
        # Retrieves the error in case every page that wanted the answer has closed.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._answers[key] = (now, answer)
        self._answers.move_to_end(key)
        while len(self._answers) > MOST_ANSWERS:
            forgotten, _ = self._answers.popitem(last=False)
            self._rests.pop(forgotten, None)
        return await asyncio.shield(answer)

    def forget(self) -> None:
        """Drops all answers, because something has changed."""
        self._answers.clear()
        self._rests.clear()

    async def _put(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        async with self._room:
            self.asked += 1
            started = self._clock()
            try:
                return await ask()
            finally:
                self._rests[key] = min(LONGEST_REST_SECONDS, REST * (self._clock() - started))
