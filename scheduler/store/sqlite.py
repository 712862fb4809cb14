"""A journal in one SQLite file: WAL, one writer, one row per batch, a checksum on each.

`snapshot` holds the condensed journal up to the row named in `meta`, `journal` what came after. A snapshot is written
beside the old one and becomes valid with one update of `meta`, so a crash at any moment leaves one that is whole.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from parlmesh.errors import FailedPrecondition
from parlmesh.telemetry import get_logger

from ..condensing import Condenser
from ..records import DamagedJournal, seal, split, unseal
from .protocol import Opened, new_identity, next_floor

log = get_logger("parlmesh.scheduler")

FORMAT = 1
SNAPSHOT_BATCH_BYTES = 1 << 20
ROWS_PER_STEP = 64
BUSY_SECONDS = 5.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY, batch BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (
    generation INTEGER NOT NULL, position INTEGER NOT NULL, batch BLOB NOT NULL,
    PRIMARY KEY (generation, position)
);
"""


class SqliteStore:
    """Survives the process; with `full` also the loss of power."""

    durable = True

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Literal["full", "normal"] = "full",
        repair: bool = False,
        compact_records: int = 200_000,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._repair = repair
        self._compact_records = compact_records
        self._database: sqlite3.Connection | None = None
        self._lock: IO[bytes] | None = None
        self._generation = 0
        self._covered = 0
        self._last_id = 0
        self._new_records = 0
        self._live_tasks = 0
        self.identity = 0

    def open(self, wall_time: float) -> Opened:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(self._path)
        with self._errors():
            # The committer's thread goes on with the connection that this thread opened; never both at once.
            self._database = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
            )
            self._execute("PRAGMA journal_mode = WAL")
            self._execute(f"PRAGMA synchronous = {self._synchronous.upper()}")
            self._database.executescript(_SCHEMA)
            self._check_format()
            self._generation = self._meta("generation", 0)
            self._covered = self._meta("covered", 0)
            self._execute("DELETE FROM snapshot WHERE generation != ?", self._generation)
            self._execute("DELETE FROM journal WHERE id <= ?", self._covered)
            floor = next_floor(self._meta("lease_floor", 0), wall_time)
            self._set_meta("lease_floor", floor)
            self._identify(self._meta("identity", 0) or new_identity())
        return Opened(floor, self._read_all())

    def append(self, batch: bytes, records: int) -> None:
        with self._errors():
            self._execute("INSERT INTO journal VALUES (?, ?)", self._last_id + 1, seal(batch))
        self._last_id += 1
        self._new_records += records

    def wants_compaction(self) -> bool:
        return self._new_records >= max(self._compact_records, 2 * self._live_tasks)

    def compact(self) -> Iterator[None]:
        with self._errors():
            condenser, covered, generation = Condenser(), self._last_id, self._generation + 1
            self._new_records = 0
            for batch in self._read_snapshot():
                condenser.read(batch)
                yield
            for batch in self._read_journal(covered):
                condenser.read(batch)
                yield
            for position, batch in enumerate(condenser.write(SNAPSHOT_BATCH_BYTES)):
                self._execute("INSERT INTO snapshot VALUES (?, ?, ?)", generation, position, seal(batch))
                yield
            self._execute("BEGIN IMMEDIATE")
            self._set_meta("generation", generation)
            self._set_meta("covered", covered)
            self._execute("COMMIT")
            self._generation, self._covered, self._live_tasks = generation, covered, condenser.tasks
            yield
            yield from self._delete_old()

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _read_all(self) -> Iterator[bytes]:
        with self._errors():
            for batch in self._read_snapshot():
                yield batch
            self._last_id = self._covered
            for batch in self._read_journal(None):
                yield batch
                self._last_id += 1
                self._new_records += sum(1 for _ in split(batch))

    def _read_snapshot(self) -> Iterator[bytes]:
        """Row by row: a cursor held open would keep the log from being cut back."""
        position = 0
        while row := self._row(
            "SELECT batch FROM snapshot WHERE generation = ? AND position = ?", self._generation, position
        ):
            yield unseal(row[0], f"snapshot {self._generation}, part {position} of {self._path}")
            position += 1

    def _read_journal(self, last_id: int | None) -> Iterator[bytes]:
        """Rows after the snapshot, up to `last_id` or all there are."""
        expected = self._covered + 1
        while last_id is None or expected <= last_id:
            row = self._row("SELECT id, batch FROM journal WHERE id >= ? ORDER BY id LIMIT 1", expected)
            if row is None:
                return
            where = f"journal row {expected} of {self._path}"
            try:
                if row[0] != expected:
                    raise DamagedJournal(f"{where} is missing", where=where)
                batch = unseal(row[1], where)
            except DamagedJournal as error:
                if not self._repair:
                    raise DamagedJournal(
                        f"{error.message}; restore a copy, or set store.repair=true to go on without it and what "
                        "followed",
                        where=where,
                    ) from None
                log.error("journal_cut", where=where, error=error.message)
                self._execute("DELETE FROM journal WHERE id >= ?", expected)
                self._identify(new_identity())
                return
            yield batch
            expected += 1

    def _delete_old(self) -> Iterator[None]:
        while self._row("SELECT 1 FROM journal WHERE id <= ? LIMIT 1", self._covered):
            self._execute(
                "DELETE FROM journal WHERE id IN (SELECT id FROM journal WHERE id <= ? ORDER BY id LIMIT ?)",
                self._covered,
                ROWS_PER_STEP,
            )
            yield
        while self._row("SELECT 1 FROM snapshot WHERE generation < ? LIMIT 1", self._generation):
            self._execute(
                "DELETE FROM snapshot WHERE (generation, position) IN "
                "(SELECT generation, position FROM snapshot WHERE generation < ? LIMIT ?)",
                self._generation,
                ROWS_PER_STEP,
            )
            yield

    def _check_format(self) -> None:
        found = self._meta("format", FORMAT)
        if found != FORMAT:
            raise DamagedJournal(f"{self._path} has format {found}; this scheduler reads format {FORMAT}")
        self._set_meta("format", FORMAT)

    def _identify(self, identity: int) -> None:
        self._set_meta("identity", identity)
        self.identity = identity

    def _meta(self, key: str, default: int) -> int:
        row = self._row("SELECT value FROM meta WHERE key = ?", key)
        return default if row is None else int(row[0])

    def _set_meta(self, key: str, value: int) -> None:
        self._execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2", key, value)

    def _row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._execute(statement, *values).fetchone()
        return row

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        assert self._database is not None
        return self._database.execute(statement, values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors in the words of the protocol."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if self._database is not None and self._database.in_transaction:
                self._database.rollback()
            raise OSError(f"{self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise DamagedJournal(f"{self._path} is damaged: {error}") from error


def _take_lock(path: Path) -> IO[bytes]:
    lock = path.with_name(path.name + ".lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise FailedPrecondition(
            f"{path} is in use by another scheduler; stop it or choose another store.path", reason="STORE_IN_USE"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n".encode())
    lock.flush()
    return lock
