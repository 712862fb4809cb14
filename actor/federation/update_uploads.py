"""Uploads the updates of a process's nodes to the coordinator: one stream that stays open, receipts in order."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from parlmesh.errors import DeadlineExceeded, FleetError, PermissionDenied, Unauthenticated, Unavailable
from parlmesh.rpc import Backoff, being_cancelled, error_from_status
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import part_to_wire

from ..stream_errors import STREAM_ERRORS, fleet_error_of

_CHUNK_BYTES = 1 << 19
_MOST_PARTS = 1_000


@dataclass(frozen=True, slots=True)
class Update:
    """The message sent after one node's training."""

    header: pb.UpdateHeader
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Receipt:
    """The coordinator's answer to one update."""

    round: int
    error: FleetError | None
    """None when it was accepted."""


class UpdateStream:
    """Opened by the first update, and again after a break. An update counts once, however often it is sent."""

    def __init__(self, open_call: Callable[[], Any], *, pause_seconds: float, rng: random.Random) -> None:
        self._open_call = open_call
        self._pause_seconds = pause_seconds
        self._rng = rng
        self._session: _Session | None = None
        self._closed = False

    async def submit(self, updates: Sequence[Update], seconds: float) -> list[Receipt]:
        """Sends them until there is a receipt for each; Unavailable or DeadlineExceeded when none comes in time."""
        deadline = time.monotonic() + seconds
        backoff = Backoff(limit=self._pause_seconds, rng=self._rng)
        while True:
            session = self._open()
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                    return await session.submit(updates)
            except TimeoutError:
                # Receipts come in order: a late one would be taken for the next update's.
                session.end(Unavailable("no receipt came within the time limit"))
                raise DeadlineExceeded(f"no receipt for an update within {seconds:g} seconds") from None
            except Unavailable:
                if self._closed or time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        """Ends the stream; callers that wait for a receipt get Unavailable."""
        self._closed = True
        if self._session is not None:
            self._session.end(Unavailable("the actor is leaving"))
            await self._session.ended()

    def _open(self) -> "_Session":
        if self._closed:
            raise Unavailable("the actor is leaving")
        if self._session is None or self._session.broken:
            # No deadline: each update has its own, and the stream is kept for the next.
            self._session = _Session(self._open_call())
        return self._session


class _Session:
    """One call, ended by the first error."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._waiting: deque[asyncio.Future[Receipt]] = deque()
        self._turn = asyncio.Lock()
        self._error: FleetError | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @property
    def broken(self) -> bool:
        return self._error is not None

    async def submit(self, updates: Sequence[Update]) -> list[Receipt]:
        futures = []
        async with self._turn:
            if self._error is not None:
                raise self._error
            for message, begun in _messages(updates):
                for _ in range(begun):
                    futures.append(asyncio.get_running_loop().create_future())
                    self._waiting.append(futures[-1])
                try:
                    await self._call.write(message)
                except STREAM_ERRORS as error:
                    self.end(_cause(error))
                except asyncio.InvalidStateError:
                    self.end(Unavailable("the stream of updates has ended"))
                except BaseException as error:
                    # A message that is cut short spoils all that follow. grpc also raises CancelledError when `end`
                    # cancelled the call under a writer; then the reason is known.
                    self.end(Unavailable("an update was abandoned halfway"))
                    if being_cancelled() or not isinstance(error, asyncio.CancelledError):
                        raise
                if self._error is not None:
                    break
        answers = await asyncio.gather(*futures, return_exceptions=True)
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        if len(receipts) < len(updates):
            raise self._error or Unavailable("the stream of updates has ended")
        return receipts

    def end(self, error: FleetError) -> None:
        """Fails every waiting update; the first error is kept."""
        if self._error is None:
            self._error = error
        self._call.cancel()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._error)

    async def ended(self) -> None:
        await asyncio.wait({self._reader})

    async def _read(self) -> None:
        try:
            while isinstance(answer := await self._call.read(), pb.SubmitUpdatesResponse):
                for receipt in answer.receipts:
                    self._settle(receipt)
            # If the coordinator ended the stream, its status says why.
            await self._call
            self.end(Unavailable("the coordinator ended the stream of updates"))
        except STREAM_ERRORS as error:
            self.end(_cause(error))
        except asyncio.CancelledError:
            # grpc raises it from the read of a call that `end` cancelled; the task ends here in any case.
            self.end(Unavailable("the stream of updates was cancelled"))

    def _settle(self, receipt: pb.UpdateReceipt) -> None:
        if not self._waiting:
            return
        error = error_from_status(receipt.status) if receipt.HasField("status") else None
        future = self._waiting.popleft()
        if not future.done():
            future.set_result(Receipt(int(receipt.round), error))


def _cause(error: Exception) -> FleetError:
    """A refusal of this caller is final; anything else that ends a stream may be temporary."""
    meant = fleet_error_of(error)
    return meant if isinstance(meant, (PermissionDenied, Unauthenticated, Unavailable)) else Unavailable(meant.message)


def _messages(updates: Sequence[Update]) -> Iterator[tuple[bytes, int]]:
    """Encoded messages, and how many updates start in each: small updates share one, large ones take several."""
    parts: list[bytes] = []
    size = 0
    for update in updates:
        data = memoryview(update.data).cast("B")
        header = pb.SubmitUpdateRequest(header=update.header).SerializeToString()
        if parts and (size + len(data) > _CHUNK_BYTES or len(parts) == _MOST_PARTS):
            yield b"".join(parts), len(parts)
            parts, size = [], 0
        parts.append(part_to_wire(header, data[:_CHUNK_BYTES]))
        size += len(parts[-1])
        if len(data) > _CHUNK_BYTES:
            yield b"".join(parts), len(parts)
            parts, size = [], 0
            for start in range(_CHUNK_BYTES, len(data), _CHUNK_BYTES):
                yield part_to_wire(b"", data[start : start + _CHUNK_BYTES]), 0
    if parts:
        yield b"".join(parts), len(parts)
