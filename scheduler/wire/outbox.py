"""Parts that wait to be written to each stream: everything ready is sent together, and little waits for more.

Actors get a welcome, assignments, revocations and commands, in the order of decisions; clients get receipts and
outcomes.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from parlmesh.errors import FleetError, ResourceExhausted, Unavailable
from parlmesh.v1.blob_service_pb2 import BlobTerms

from ..blob_ledger import BlobLedger, writer_of
from ..config import SchedulerConfig
from ..core.actions import Assign, Command, Revoke, ToActor, Welcome
from ..core.core import Core
from ..core.task import Task
from . import hot_messages
from .dependency_results import encoded_inputs
from .messages import welcome_to_bytes

MESSAGE_BYTES = 1024 * 1024
# A reader that leaves more than this unread is disconnected with the reason and may come back.
MAX_WAITING_BYTES = 16 * 1024 * 1024
# A part after which a new message starts, because the contents of one message have no order.
BREAK = b""
# Bytes that a lease waiting to be sent keeps in memory.
WEIGHT = 100
# Bytes of a message around an assignment.
_FRAME_BYTES = 4 << 10
# How long an acknowledgement waits for an assignment to travel with, which saves a message per long-running task. It
# differs by stream, so that many tasks that end together are not all acknowledged at once, which would delay others.
SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 0.2
_GOLDEN = 0.6180339887498949


class Assignments:
    """Granted leases, encoded when they can be written; those taken back in the meantime are left out.

    A cancel therefore never overtakes an assignment that waits for its commit, and never shares a message with one.
    The length is its weight in memory until then; the tasks themselves belong to the queue.
    """

    __slots__ = ("_core", "_known", "_lease_ids", "_most_bytes", "_session", "_tasks")

    def __init__(
        self, core: Core, session: int, tasks: list[Task], known: dict[bytes, tuple[str, int]], most_bytes: int
    ) -> None:
        """`most_bytes`: the largest message that this scheduler sends; the actor may take less."""
        self._core = core
        self._most_bytes = most_bytes
        self._session = session
        self._tasks = tasks
        # Copied, because the tasks keep changing.
        self._lease_ids = [task.lease_id for task in tasks]
        self._known = known

    def __len__(self) -> int:
        return WEIGHT * len(self._tasks)

    def begin(self, now: float) -> None:
        """Starts leases that waited for their commit and are sent now."""
        self._core.begin(self._session, self._tasks, self._lease_ids, now)

    def encode(self) -> Iterable[bytes]:
        """Encodes the leases that are still valid; each is checked at its turn."""
        tasks = self._tasks
        if len(tasks) == 1 or sum([len(task.body) for task in tasks]) <= hot_messages.PART_BYTES:
            standing = self._core.standing(self._session, tasks, self._lease_ids)
            return hot_messages.assignments(standing, self._known, self._inputs)
        return self._few_at_a_time()

    def _few_at_a_time(self) -> Iterator[bytes]:
        for start, end in self._portions():
            tasks = self._core.standing(self._session, self._tasks[start:end], self._lease_ids[start:end])
            yield from hot_messages.assignments(tasks, self._known, self._inputs)

    def _inputs(self, task: Task) -> bytes:
        actor = self._core.sessions.by_number[self._session]
        return encoded_inputs(task, self._core.life.tasks, min(actor.message_bytes, self._most_bytes) - _FRAME_BYTES)

    def _portions(self) -> Iterator[tuple[int, int]]:
        start, size = 0, 0
        for position, task in enumerate(self._tasks):
            size += len(task.body)
            if size > hot_messages.PART_BYTES:
                yield start, position + 1
                start, size = position + 1, 0
        if start < len(self._tasks):
            yield start, len(self._tasks)


Part: TypeAlias = bytes | Assignments


class Outbox:
    """Encoded parts of messages of one type; any number of parts may be joined."""

    def __init__(self, patience_seconds: float = 0.005) -> None:
        self._patience_seconds = patience_seconds
        # Leases sent on this stream whose results have not come: (task id, lease id) by their bytes.
        self.leases: dict[bytes, tuple[str, int]] = {}
        self.ready = asyncio.Event()
        """Also set by a caller that has something for `more`."""
        self.more: Callable[[], list[bytes]] | None = None
        """Returns parts to be encoded when they can be written, after those that were put."""
        self._parts: list[Part] = []
        self._waiting_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self._error: FleetError | None = None
        self._ended = False

    def put(self, parts: Sequence[Part]) -> None:
        self._keep(parts)
        self.ready.set()

    def put_patiently(self, parts: Sequence[Part]) -> None:
        """Puts parts that are not urgent: they travel with the next message, or alone if none is sent soon."""
        self._keep(parts)
        if self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(self._patience_seconds, self.ready.set)

    def close(self, error: FleetError) -> None:
        """Ends the stream with this error once its reader has taken the parts in progress; the rest is dropped."""
        if self._error is not None:
            return
        self._error = error
        self._parts, self._waiting_bytes = [], 0
        self.ready.set()

    @property
    def closed(self) -> bool:
        """Whether nothing more is accepted."""
        return self._error is not None

    def end(self) -> None:
        """Ends the stream in peace once everything is written."""
        self._ended = True
        self.ready.set()

    async def write_to(self, context: Any) -> None:
        """Writes everything that is put, until the end."""
        while not self._ended or self._parts:
            for message in await self.take():
                await context.write(message)

    async def take(self) -> Iterator[bytes]:
        """Waits for something to write and returns everything there is, as messages of bounded size."""
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


class ActorOutboxes:
    """One outbox for each stream, by session."""

    def __init__(
        self,
        core: Core,
        config: SchedulerConfig,
        *,
        clock: Callable[[], float],
        blobs: BlobLedger | None,
        healthy: Callable[[], bool],
        trusted: Callable[[], bool],
        after_commit: Callable[[Callable[[], None]], None],
    ) -> None:
        self._core, self._config, self._clock, self._blobs = core, config, clock, blobs
        self._healthy, self._trusted, self._after_commit = healthy, trusted, after_commit
        self.by_session: dict[int, Outbox] = {}
        """Outboxes of open streams."""

    def open(self, session: int) -> Outbox:
        """Makes the outbox of a new stream."""
        patience = SHORTEST_SECONDS + (LONGEST_SECONDS - SHORTEST_SECONDS) * (session * _GOLDEN % 1.0)
        outbox = self.by_session[session] = Outbox(patience)
        return outbox

    def end(self, session: int) -> None:
        """Drops the outbox of a stream that has ended."""
        self.by_session.pop(session, None)

    def send(self, action: ToActor) -> None:
        """Performs the core's decisions for an actor; its stream may have ended in the meantime."""
        outbox = self.by_session.get(action.session)
        if outbox is None:
            return
        if isinstance(action, Assign):
            self._assign(outbox, action)
        elif isinstance(action, Revoke):
            for lease in action.leases:
                outbox.leases.pop(hot_messages.lease(*lease), None)
            revoked = hot_messages.revoked(action.leases)
            # The actor throws its work away, which must not happen for a decision that cannot be written down.
            if self._healthy():
                outbox.put(revoked)
            else:
                self._after_commit(partial(outbox.put, revoked))
        elif isinstance(action, Command):
            outbox.put([hot_messages.command(action.command), BREAK])
        elif isinstance(action, Welcome):
            terms = self._config.leases
            welcome = welcome_to_bytes(
                action.leases,
                terms.heartbeat_seconds,
                terms.duration_seconds,
                self._config.listen.max_message_bytes,
                action.newest_incarnation,
                self._blob_terms(action.session),
            )
            outbox.put([welcome])
        else:
            outbox.close(Unavailable("a newer stream of the same actor took over", reason="STREAM_REPLACED"))

    def _assign(self, outbox: Outbox, action: Assign) -> None:
        most_bytes = self._config.listen.max_message_bytes
        assignments = Assignments(self._core, action.session, action.tasks, outbox.leases, most_bytes)
        if action.after_commit:
            self._after_commit(partial(self._assign_late, outbox, assignments))
        elif self._trusted():
            outbox.put([assignments])
        else:
            # Another scheduler may have assigned these tasks, so they are sent only once this is written down.
            self._after_commit(partial(outbox.put, [assignments]))

    def _assign_late(self, outbox: Outbox, assignments: Assignments) -> None:
        assignments.begin(self._clock())
        outbox.put([assignments])

    def _blob_terms(self, session: int) -> BlobTerms | None:
        actor = self._core.sessions.by_number.get(session)
        if self._blobs is None or actor is None:
            return None
        return self._blobs.terms(writer_of("a", actor.node_id))


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
