"""Group commit: one thread appends to the store all that was decided while it was busy, then reports how far it is.

Answers that promise durability wait here, in order. If the store fails, the same batch is tried again until it works,
so nothing is acknowledged before it is stored, and nothing is stored twice.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

from parlmesh.errors import FleetError
from parlmesh.telemetry import get_logger

from .. import failpoints, metrics
from ..core.actions import Persist
from ..journal.records import DamagedJournal, encode
from . import Deposed, Store

log = get_logger("parlmesh.scheduler")

FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 2.0
# Interval at which an idle store is checked.
IDLE_SECONDS = 1.0
PAUSE_BETWEEN_STEPS_SECONDS = 0.002
MAX_BATCH_BYTES = 16 * 1024 * 1024

Value = TypeVar("Value")
# (encoded records, number of records, number of the batch)
Batch = tuple[bytes, int, int]


class Committer:
    """Owned by the event loop; only `_run` and the functions it calls run in the thread."""

    def __init__(
        self,
        store: Store,
        *,
        on_health: Callable[[bool], None],
        on_death: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`on_health` is called with whether the store can be written, `on_death` with an error after which it never
        will be."""
        self._store = store
        self._on_health = on_health
        self._on_death = on_death
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._held: deque[tuple[int, Callable[[], None]]] = deque()
        self._given = 0
        self._committed = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._abandoned: FleetError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._store_there = True
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)

    @property
    def behind(self) -> int:
        """Batches that were added but not committed."""
        return self._given - self._committed

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def add(self, persist: Persist) -> None:
        """Encodes immediately, because the tasks keep changing."""
        if failpoints.armed:
            failpoints.hit(failpoints.BEFORE_ENCODE)
        batch, records = encode(persist)
        if failpoints.armed:
            failpoints.hit(failpoints.AFTER_ENCODE)
        self._batches.put((batch, records, self._given + 1))
        self._given += 1

    def after_commit(self, release: Callable[[], None]) -> None:
        """Calls `release` once everything added so far is durable; immediately if it already is."""
        if self._abandoned is not None:
            return
        if self._given == self._committed:
            release()
        else:
            self._held.append((self._given, release))

    async def committed(self) -> None:
        """Waits until everything added so far is durable."""
        if self._abandoned is not None:
            raise self._abandoned
        if self._given == self._committed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def release() -> None:
            # The caller may have been cancelled in the meantime.
            if not done.done():
                done.set_result(None)

        self._held.append((self._given, release))
        self._waiting.add(done)
        try:
            await done
        finally:
            self._waiting.discard(done)

    def abandon(self, error: FleetError) -> None:
        """Abandons uncommitted records: waiting callers get the error, and nothing more is released."""
        self._abandoned = error
        self._held.clear()
        self._closing.set()
        for done in tuple(self._waiting):
            if not done.done():
                done.set_exception(error)

    async def close(self, deadline_seconds: float) -> bool:
        """Commits the added records and stops; False if the store did not take them in time."""
        if self._loop is None:
            # Never started, because the server could not listen: nothing was announced.
            return self._given == self._committed
        self._batches.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join, deadline_seconds)
        self._closing.set()
        if self._thread.is_alive():
            await loop.run_in_executor(None, self._thread.join, LONGEST_RETRY_SECONDS + 1.0)
        return self._given == self._committed

    def _release(self, committed: int) -> None:
        if failpoints.armed:
            failpoints.hit(failpoints.BEFORE_RELEASE)
        if self._abandoned is not None:
            return
        self._committed = committed
        held = self._held
        while held and held[0][0] <= committed:
            release = held.popleft()[1]
            try:
                release()
            except Exception as error:
                # An answer that fails must not hold up those behind it.
                log.exception("release_failed", error)

    def _run(self) -> None:
        try:
            self._work()
        except Deposed as error:
            log.warning("commit_refused", message=error.message)
            self._tell(self._on_death, error)
        except BaseException as error:
            log.exception("committer_died", error)
            self._tell(self._on_health, False)
            self._tell(self._on_death, error)

    def _work(self) -> None:
        compaction: Iterator[None] | None = None
        while True:
            batches = self._next(blocking=compaction is None)
            if batches is None:
                return
            if batches and not self._commit(batches):
                return
            if not batches and compaction is None:
                self._look_after()
            if compaction is None and self._store.wants_compaction():
                compaction = self._store.compact()
            elif compaction is not None:
                compaction = self._step(compaction)

    def _next(self, *, blocking: bool) -> list[Batch] | None:
        """All waiting batches, an empty list if none came for a while, None at the end."""
        batches: list[Batch] = []
        size = 0
        try:
            while size < MAX_BATCH_BYTES:
                waits = blocking and not batches
                batch = self._batches.get(block=waits, timeout=IDLE_SECONDS if waits else None)
                if batch is None:
                    # Records added before the stop are committed first.
                    self._batches.put(None)
                    return batches or None
                batches.append(batch)
                size += len(batch[0])
        except Empty:
            pass
        return batches

    def _commit(self, batches: list[Batch]) -> bool:
        data = b"".join(batch[0] for batch in batches)
        records = sum(batch[1] for batch in batches)
        wait = FIRST_RETRY_SECONDS
        failed = False
        while True:
            started = time.perf_counter()
            try:
                if failpoints.armed:
                    failpoints.hit(failpoints.BEFORE_COMMIT)
                self._store.append(data, records)
                break
            except OSError as error:
                if not failed:
                    log.error("commit_failed", error=str(error), records=records)
                    self._tell(self._on_health, False)
                failed = True
                metrics.COMMIT_FAILURES.inc()
                if self._closing.wait(wait):
                    log.error("stopped_with_uncommitted_records", records=records)
                    return False
                wait = min(LONGEST_RETRY_SECONDS, 2 * wait)
        if failpoints.armed:
            failpoints.hit(failpoints.AFTER_COMMIT)
        metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
        metrics.COMMIT_RECORDS.observe(records)
        if failed:
            log.info("commit_works_again", records=records)
            self._tell(self._on_health, True)
        self._tell(self._release, batches[-1][2])
        return True

    def _look_after(self) -> None:
        """Checks an idle store, so that its loss is noticed even if nothing is written."""
        try:
            self._store.check()
            healthy = True
        except OSError as error:
            healthy = False
            if self._store_there:
                log.error("store_failing", error=str(error))
        if healthy != self._store_there:
            self._store_there = healthy
            self._tell(self._on_health, healthy)

    def _step(self, compaction: Iterator[None]) -> Iterator[None] | None:
        try:
            next(compaction)
        except StopIteration:
            log.info("journal_compacted")
            return None
        except (OSError, DamagedJournal) as error:
            log.error("compaction_failed", error=str(error))
            return None
        time.sleep(PAUSE_BETWEEN_STEPS_SECONDS)
        return compaction

    def _tell(self, receiver: Callable[[Value], None], value: Value) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(receiver, value)
        except RuntimeError:
            # The loop is closed: no caller waits any longer.
            return
