"""What waits to be written to one stream. Whatever is ready goes out together; little waits for more."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from parlmesh.errors import FleetError

MESSAGE_BYTES = 1024 * 1024


class Outbox:
    """Encoded parts of messages; parts of one message type may be joined in any number."""

    def __init__(self, patience_seconds: float = 0.005) -> None:
        self._patience_seconds = patience_seconds
        # Leases sent on this stream whose results have not come: (task id, lease id) by their bytes.
        self.leases: dict[bytes, tuple[str, int]] = {}
        self.ready = asyncio.Event()
        """To be set by whoever gives `more` something."""
        self.more: Callable[[], list[bytes]] | None = None
        """Parts that are encoded when they can be written, behind those that were put."""
        self._parts: list[bytes] = []
        self._patience: asyncio.TimerHandle | None = None
        self._error: FleetError | None = None
        self._ended = False

    def put(self, parts: Iterable[bytes]) -> None:
        self._parts += parts
        self.ready.set()

    def put_patiently(self, parts: Iterable[bytes]) -> None:
        """For what nobody waits for: it travels with the next message, or alone when none comes soon."""
        self._parts += parts
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(self._patience_seconds, self.ready.set)

    def close(self, error: FleetError) -> None:
        """The stream ends with this error once it is read."""
        self._error = error
        self.ready.set()

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
        parts, self._parts = self._parts, []
        if self._error is not None:
            raise self._error
        return messages(parts if self.more is None else parts + self.more())


def messages(parts: list[bytes]) -> Iterator[bytes]:
    """Joins parts into messages of at most MESSAGE_BYTES, unless a single part is larger."""
    batch: list[bytes] = []
    size = 0
    for part in parts:
        if batch and size + len(part) > MESSAGE_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
        batch.append(part)
        size += len(part)
    if batch:
        yield b"".join(batch)
