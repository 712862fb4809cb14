"""Limits how many bodies of unauthenticated callers are read at once, because they use the server's memory."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

from parlmesh.errors import DeadlineExceeded, InvalidInput, ResourceExhausted

MOST_AT_ONCE = 1
MOST_WAITING = 4
"""Each has up to its stream's window in memory, unread."""
LARGEST_BODY_BYTES = 64 * 1024

_PATIENCE_SECONDS = 5.0
_PATIENCE_WHEN_BUSY_SECONDS = 0.05
_LOOKS_WHEN_BUSY = 3
_FIRST_MESSAGE_SECONDS = 1.0
_UNREAD_SECONDS = 10.0
_SETTLE_SECONDS = 0.05
_MOST_PEERS = 1024

Read = Callable[[], Awaitable[Any]]


class Bodies:
    """A few places to read in, given to the newest caller first: a probe gets through however many slow ones wait."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._free = MOST_AT_ONCE
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Connections that sent too much or too slowly, and until when nothing of them is read.
        self._unread: OrderedDict[str, float] = OrderedDict()

    async def read(self, read: Read, peer: str) -> bytes:
        """The one message of an open method's call."""
        self._refuse_unread(peer)
        await self._take_place()
        size = LARGEST_BODY_BYTES
        try:
            # Another call of the connection may have been read in the meantime.
            self._refuse_unread(peer)
            try:
                body = await self._read(read)
                size = len(body) if isinstance(body, bytes) else 0
            except DeadlineExceeded:
                # gRPC keeps receiving requested bytes until the call has ended.
                size = LARGEST_BODY_BYTES + 1
                raise
        finally:
            self._leave_place(size, peer)
        if not isinstance(body, bytes):
            raise InvalidInput("the call has no message", reason="MALFORMED_MESSAGE")
        if size > LARGEST_BODY_BYTES:
            # The error's traceback would keep it alive until the garbage collector runs.
            del body
            raise InvalidInput(
                f"a message of {size} bytes is too large here; the limit is {LARGEST_BODY_BYTES}",
                reason="MESSAGE_TOO_LARGE",
            )
        return body

    async def discard_first(self, read: Read, peer: str) -> None:
        """Reads and drops an unused message, if a place is free.

        A grpc.aio client whose first message meets a closed stream reports INTERNAL and loses our status (grpc issue
        36066); this prevents that, but never at the cost of memory.
        """
        if self._free == 0 or self._is_unread(peer):
            return
        self._free -= 1
        size = 0
        try:
            body = await asyncio.wait_for(read(), _FIRST_MESSAGE_SECONDS)
            size = len(body) if isinstance(body, bytes) else 0
            del body
        except TimeoutError:
            pass
        finally:
            self._leave_place(size, peer)

    def _is_unread(self, peer: str) -> bool:
        return self._unread.get(peer, 0.0) > self._monotonic()

    def _leave_place(self, size: int, peer: str) -> None:
        """Frees a place after a message of that size; a larger one stays in memory until its call has ended."""
        if size <= LARGEST_BODY_BYTES:
            self._give_place()
            return
        asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._give_place)
        self._unread.pop(peer, None)
        self._unread[peer] = self._monotonic() + _UNREAD_SECONDS
        if len(self._unread) > _MOST_PEERS:
            self._unread.popitem(last=False)

    def _refuse_unread(self, peer: str) -> None:
        if self._is_unread(peer):
            raise InvalidInput(
                f"a message of this connection was larger than {LARGEST_BODY_BYTES} bytes or did not arrive in time; "
                f"nothing of it is read here for {_UNREAD_SECONDS:g} s",
                reason="MESSAGE_TOO_LARGE",
            )

    async def _read(self, read: Read) -> Any:
        message = asyncio.ensure_future(read())
        try:
            # A slow caller gives way when others wait; a small body comes with the call itself. Several looks, because
            # after a pause of this process the first one times out before anything was read.
            patience, looks = _PATIENCE_SECONDS, 0
            while patience > 0 and not message.done() and (looks < _LOOKS_WHEN_BUSY or not self._waiting):
                await asyncio.wait([message], timeout=_PATIENCE_WHEN_BUSY_SECONDS)
                patience -= _PATIENCE_WHEN_BUSY_SECONDS
                looks += 1
            if not message.done():
                raise DeadlineExceeded("the message did not arrive in time", reason="SLOW_MESSAGE")
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
