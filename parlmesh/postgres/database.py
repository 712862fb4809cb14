"""PostgreSQL connections for blocking callers: one event loop in a thread, one connection per lane.

A call that takes too long loses its connection but is never cancelled: PostgreSQL answers a cancelled wait for a
synchronous standby with success, and only warns that the commit may be on a single machine.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from parlmesh.errors import FailedPrecondition

from .connection_settings import Target

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
# Added to a call's own deadline, in case the loop's thread is busy.
_SLACK_SECONDS = 5.0
# SQLSTATE of a database that no longer accepts writes.
_READ_ONLY = "25006"
_NO_TABLE = ("42P01", "3F000")

Connection = Any


class Database:
    """Owns the loop and its thread; `close` ends both. Each lane may be used by one thread at a time."""

    def __init__(
        self, target: Target, *, synchronous: bool = True, name: str = "parlmesh", writes: bool = True
    ) -> None:
        """`writes`: of several hosts, connect only to one that accepts writes, not to a standby."""
        self.target = target
        self._session = "read-write" if writes else "any"
        self._settings = {
            "application_name": name,
            # Otherwise the database's own setting could let a crash undo an acknowledged commit.
            "synchronous_commit": "on" if synchronous else "off",
            "lock_timeout": "0",
            "statement_timeout": "0",
            "idle_in_transaction_session_timeout": "60s",
        }
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres", daemon=True)
        self._thread.start()
        self._lanes: list[Lane] = []
        self._closed = False

    def lane(self) -> "Lane":
        """A separate connection, opened when it is needed."""
        lane = Lane(self)
        self._lanes.append(lane)
        return lane

    def perform(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """Runs the coroutine on the loop's thread; raises OSError if it takes longer."""
        if self._closed:
            coroutine.close()
            raise OSError(f"the connection to {self.target} is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds + _SLACK_SECONDS)
        except concurrent.futures.TimeoutError:
            raise OSError(f"{self.target} did not answer within {seconds:g} s") from None

    async def connect(self) -> Connection:
        return await asyncpg.connect(
            self.target.url,
            password=self.target.secret(),
            timeout=_CONNECT_SECONDS,
            server_settings=self._settings,
            target_session_attrs=self._session,
        )

    def close(self) -> None:
        if self._closed:
            return
        with contextlib.suppress(OSError):
            self.perform(self._close_lanes(), _CLOSE_SECONDS)
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _close_lanes(self) -> None:
        for lane in self._lanes:
            lane.drop()
        # Aborted transports are closed in the next turn of the loop.
        await asyncio.sleep(0)


class Lane:
    """One connection, reopened after it breaks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._warnings: list[str] = []
        self.connections = 0

    def run(self, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        """The result of `work` on the connection. After an OSError, the work may still have been done."""
        return self._database.perform(self._run(work, seconds), seconds + _CONNECT_SECONDS)

    def drop(self) -> None:
        """Aborts the connection; call it on the loop's thread."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _run(self, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        where = self._database.target
        deadline = time.monotonic() + seconds
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._database.connect()
                self._connection.add_log_listener(self._hear)
                self.connections += 1
            self._warnings.clear()
            task = asyncio.ensure_future(work(self._connection))
            await asyncio.wait({task}, timeout=max(0.05, deadline - time.monotonic()))
            if not task.done():
                self.drop()
                await asyncio.wait({task})
                task.exception()
                raise OSError(f"{where} did not answer within {seconds:g} s")
            found = task.result()
            # Log listeners are called in the turn after the answer.
            await asyncio.sleep(0)
            if self._warnings:
                raise OSError(f"{where} warns: {self._warnings[0]}")
            return found
        except asyncpg.PostgresError as error:
            if error.sqlstate in _NO_TABLE:
                raise _no_schema(where) from error
            if error.sqlstate == _READ_ONLY:
                self.drop()
            raise OSError(f"{where}: {error}") from error
        except (asyncpg.InterfaceError, asyncpg.TargetServerAttributeNotMatched, OSError, TimeoutError) as error:
            self.drop()
            raise OSError(f"{where}: {error or type(error).__name__}") from error

    def _hear(self, _: Connection, message: Any) -> None:
        if message.severity_en == "WARNING":
            self._warnings.append(message.message)


def _no_schema(target: Target) -> FailedPrecondition:
    return FailedPrecondition(
        f"{target} has no tables of parlmesh; make them with `parlmesh store migrate`", reason="STORE_NOT_MIGRATED"
    )
