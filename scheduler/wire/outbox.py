"""What waits to be written to one stream. Whatever is ready goes out together; little waits for more."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from parlmesh.errors import FleetError, ResourceExhausted

from ..core.core import Core
from ..core.task import Task
from . import fast_encode
from .dependency_results import encoded_inputs

MESSAGE_BYTES = 1024 * 1024
# A reader that leaves more than this unread is disconnected with the reason and may come back.
MAX_WAITING_BYTES = 16 * 1024 * 1024
# A part behind which a new message begins: what a message holds has no order.
BREAK = b""
# What a lease that waits to be sent keeps in memory.
WEIGHT = 100
# Bytes of a message that surround an assignment.
_FRAME_BYTES = 4 << 10


class Assignments:
    """Leases that were granted, encoded when they can be written: what was taken back meanwhile is left out.

    A cancel therefore never overtakes an assignment that waits for its commit, nor shares a message with one.
    Its length is what it weighs in memory until then; the tasks themselves are the queue's.
    """

    __slots__ = ("_core", "_known", "_lease_ids", "_session", "_tasks")

    def __init__(self, core: Core, session: int, tasks: list[Task], known: dict[bytes, tuple[str, int]]) -> None:
        self._core = core
        self._session = session
        self._tasks = tasks
        # The tasks go on changing.
        self._lease_ids = [task.lease_id for task in tasks]
        self._known = known

    def __len__(self) -> int:
        return WEIGHT * len(self._tasks)

    def begin(self, now: float) -> None:
        """They waited for their commit and are put to be sent."""
        self._core.begin(self._session, self._tasks, self._lease_ids, now)

    def encode(self) -> Iterable[bytes]:
        """Each lease is looked at again when its turn comes."""
        tasks = self._tasks
        if len(tasks) == 1 or sum([len(task.body) for task in tasks]) <= fast_encode.PART_BYTES:
            standing = self._core.standing(self._session, tasks, self._lease_ids)
            return fast_encode.assignments(standing, self._known, self._inputs)
        return self._few_at_a_time()

    def _few_at_a_time(self) -> Iterator[bytes]:
        for start, end in self._portions():
            tasks = self._core.standing(self._session, self._tasks[start:end], self._lease_ids[start:end])
            yield from fast_encode.assignments(tasks, self._known, self._inputs)

    def _inputs(self, task: Task) -> bytes:
        actor = self._core.sessions.by_number[self._session]
        return encoded_inputs(task, self._core.life.tasks, actor.message_bytes - _FRAME_BYTES)

    def _portions(self) -> Iterator[tuple[int, int]]:
        start, size = 0, 0
        for position, task in enumerate(self._tasks):
            size += len(task.body)
            if size > fast_encode.PART_BYTES:
                yield start, position + 1
                start, size = position + 1, 0
        if start < len(self._tasks):
            yield start, len(self._tasks)


Part: TypeAlias = bytes | Assignments


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
