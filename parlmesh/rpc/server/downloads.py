"""Limits large answers in flight to one caller: their source stays in memory until they are read."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parlmesh.security import Identity

from ..caller_identity import caller

MOST_BYTES = 64 << 20
"""Per actor or reader, or per identity of a namespace; a larger answer is sent alone."""
_CALL_BYTES = 2 << 20


class _Places:
    def __init__(self) -> None:
        self.bytes = 0
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def fits(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= MOST_BYTES


class Downloads:
    """The downloads of one service. Code that waits for a place should hold nothing large."""

    def __init__(self) -> None:
        self._places: dict[Identity, _Places] = {}

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[None]:
        """Waits until an answer of `size` bytes may go to the caller, first come, first served."""
        identity = caller()
        if identity.owns_fleet:
            yield
            return
        size += _CALL_BYTES
        places = self._places.setdefault(identity, _Places())
        await self._take(places, size)
        try:
            yield
        finally:
            self._leave(identity, places, size)

    async def _take(self, places: _Places, size: int) -> None:
        if not places.waiting and places.fits(size):
            places.bytes += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places.waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                places.bytes -= size
            self._wake(places)
            raise

    def _leave(self, identity: Identity, places: _Places, size: int) -> None:
        places.bytes -= size
        self._wake(places)
        if not places.bytes and not places.waiting:
            self._places.pop(identity, None)

    def _wake(self, places: _Places) -> None:
        while places.waiting and (places.waiting[0][1].done() or places.fits(places.waiting[0][0])):
            size, turn = places.waiting.popleft()
            if not turn.done():
                places.bytes += size
                turn.set_result(None)
