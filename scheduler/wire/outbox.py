"""What waits to be written to one stream. Whatever is ready goes out together; little waits for more."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from parlmesh.errors import FleetError, ResourceExhausted

MESSAGE_BYTES = 1024 * 1024
# A reader that leaves more than this unread is disconnected with the reason and may come back.
MAX_WAITING_BYTES = 16 * 1024 * 1024
# A part behind which a new message begins: what a message holds has no order.
BREAK = b""


class LatePart(Protocol):
    """Encoded only when it can be written; its length is what it weighs until then."""

    def __len__(self) -> int: ...

    def encode(self) -> Iterable[bytes]: ...


Part: TypeAlias = bytes | LatePart


class Outbox:
    """Encoded parts of messages; parts of one message type may be joined in any number."""

    def __init__(self, patience_seconds: float = 0.005) -> None:
        self._patience_seconds = patience_seconds
        # Leases sent on this stream whose results have not come: (task id, lease id) by their bytes.
        self.leases: dict[bytes, tuple[str, int]] = {}
        self.ready = asyncio.Event()
        """Set by the caller that has something for `more`."""
        self.more: Callable[[], list[bytes]] | None = None
        """Parts that are encoded when they can be written, behind those that were put."""
        self._parts: list[Part] = []
        self._waiting_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._error: FleetError | None = None
        self._ended = False

    def put(self, parts: Sequence[Part]) -> None:
        self._keep(parts)
        self.ready.set()

    def put_patiently(self, parts: Sequence[Part]) -> None:
        """For what nobody waits for: it travels with the next message, or alone when none comes soon."""
        self._keep(parts)
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(self._patience_seconds, self.ready.set)

    def close(self, error: FleetError) -> None:
        """The stream ends with this error once its reader has taken what is under way; nothing else is kept."""
        if self._error is not None:
            return
        self._error = error
        self._parts, self._waiting_bytes = [], 0
        self.ready.set()

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._error is not None

    def end(self) -> None:
        """The stream ends in peace once everything is written."""
        self._ended = True
        self.ready.set()

    async def write_to(self, context: Any) -> None:
        """Writes whatever is put until the end."""
        while not self._ended or self._parts:
            for message in await self.take():
                await context.write(message)

    async def take(self) -> Iterator[bytes]:
        """Waits for something, then everything, as messages of bounded size."""
        await self.ready.wait()
        self.ready.clear()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        parts, self._parts, self._waiting_bytes = self._parts, [], 0
        if self._error is not None:
            raise self._error
        return messages(parts if self.more is None else [*parts, *self.more()])

    def _keep(self, parts: Sequence[Part]) -> None:
        if self._error is not None:
            return
        self._parts += parts
        self._waiting_bytes += sum(map(len, parts))
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self.close(
                ResourceExhausted(
                    f"{self._waiting_bytes} bytes wait to be read; the limit is {MAX_WAITING_BYTES}",
                    reason="READER_TOO_SLOW",
                )
            )


def messages(parts: Iterable[Part]) -> Iterator[bytes]:
    """Joins parts into messages of at most MESSAGE_BYTES, unless a single part is larger."""
    batch: list[bytes] = []
    size = 0
    for part in parts:
        for piece in (part,) if isinstance(part, bytes) else part.encode():
            if batch and (size + len(piece) > MESSAGE_BYTES or not piece):
                yield b"".join(batch)
                batch, size = [], 0
            if piece:
                batch.append(piece)
                size += len(piece)
    if batch:
        yield b"".join(batch)
