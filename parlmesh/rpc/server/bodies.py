"""How many bodies of callers who proved nothing are read at the same time: a stranger's memory is everyone's memory."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from parlmesh.errors import DeadlineExceeded, InvalidInput, ResourceExhausted

MOST_AT_ONCE = 1
MOST_WAITING = 32
"""Each has up to its stream's window in memory, unread."""
LARGEST_BODY_BYTES = 64 * 1024

_PATIENCE_SECONDS = 5.0
_PATIENCE_WHEN_BUSY_SECONDS = 0.05
_LOOKS_WHEN_BUSY = 3
_FIRST_MESSAGE_SECONDS = 1.0

Read = Callable[[], Awaitable[Any]]


class Bodies:
    """A few places to read in, the newest caller first: a probe gets through however many slow ones wait before it."""

    def __init__(self) -> None:
        self._free = MOST_AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def read(self, read: Read) -> bytes:
        """The one message of an open method's call."""
        await self._take_place()
        try:
            body = await self._read(read)
        finally:
            self._give_place()
        if not isinstance(body, bytes):
            raise InvalidInput("the call has no message", reason="MALFORMED_MESSAGE")
        size = len(body)
        if size > LARGEST_BODY_BYTES:
            # The traceback of the error would keep it alive until the collector comes by.
            del body
            raise InvalidInput(
                f"a message of {size} bytes is too large here; the limit is {LARGEST_BODY_BYTES}",
                reason="MESSAGE_TOO_LARGE",
            )
        return body

    async def discard_first(self, read: Read) -> None:
        """Takes a message nobody will look at, if a place is free.

        A grpc.aio client whose first message meets a closed stream reports INTERNAL and loses our status (grpc issue
        36066); this spares it that, but never at the price of memory.
        """
        if self._free == 0:
            return
        self._free -= 1
        try:
            await asyncio.wait_for(read(), _FIRST_MESSAGE_SECONDS)
        except TimeoutError:
            pass
        finally:
            self._give_place()

    async def _read(self, read: Read) -> Any:
        message = asyncio.ensure_future(read())
        try:
            # A slow caller gives way when others wait; a small body came with the call itself. Several looks, because
            # after a pause of this process the time of the first is over before anything was read.
            patience, looks = _PATIENCE_SECONDS, 0
            while patience > 0 and not message.done() and (looks < _LOOKS_WHEN_BUSY or not self._waiting):
                await asyncio.wait([message], timeout=_PATIENCE_WHEN_BUSY_SECONDS)
                patience -= _PATIENCE_WHEN_BUSY_SECONDS
                looks += 1
            if not message.done():
                raise DeadlineExceeded("the message did not come in time", reason="SLOW_MESSAGE")
            return message.result()
        finally:
            message.cancel()
            del message

    async def _take_place(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft().set_exception(
                ResourceExhausted("too many calls without a credential", reason="TOO_MANY_STRANGERS")
            )
        try:
            await asyncio.wait_for(turn, _PATIENCE_SECONDS)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give_place()
            raise
        except TimeoutError:
            raise ResourceExhausted("too many calls without a credential", reason="TOO_MANY_STRANGERS") from None
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _give_place(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
