"""The tables of a SQLite journal: a few numbers, the compacted journal in parts, and the rows that came after it."""

import errno
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from parlmesh.sqlite_errors import SQLITE_ERRORS

from ..journal.records import DamagedJournal, unseal
from .row_compaction import UNKNOWN_PARTS, Place

FORMAT = 1
BUSY_SECONDS = 5.0
ROWS_PER_STEP = 64
# SQLite's extended codes add detail in the upper bytes.
_PRIMARY = 0xFF

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS journal (id INTEGER PRIMARY KEY, batch BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshot (
    generation INTEGER NOT NULL, position INTEGER NOT NULL, batch BLOB NOT NULL,
    PRIMARY KEY (generation, position)
);
"""


class Tables:
    """One connection. SQLite's errors come out as OSError and DamagedJournal within `errors`."""

    def __init__(self, path: Path, synchronous: str = "full") -> None:
        self.path = path
        # The committer's thread takes over the connection that another thread opened; never both at once.
        self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
        try:
            with self.errors():
                self.execute("PRAGMA journal_mode = WAL")
                self.execute(f"PRAGMA synchronous = {synchronous.upper()}")
                self.database.executescript(_SCHEMA)
                self._check_format()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.database.close()

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self.database.execute(statement, values)

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self.execute(statement, *values).fetchone()
        return row

    def number(self, key: str, default: int = 0) -> int:
        row = self.row("SELECT value FROM meta WHERE key = ?", key)
        return default if row is None else _number(row[0], key, self.path)

    def set_numbers(self, **values: int) -> None:
        """Writes all of them or none."""
        self.execute("BEGIN IMMEDIATE")
        try:
            for key, value in values.items():
                self.execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2", key, value)
            self.execute("COMMIT")
        except BaseException:
            self._undo()
            raise

    def check_settled(self) -> None:
        """OSError while a transaction cannot be ended: records written into it would be acknowledged and not kept."""
        if self.database.in_transaction:
            self._undo()
        if self.database.in_transaction:
            raise OSError(f"{self.path}: a transaction that failed cannot be undone")

    def place(self) -> Place:
        return place_in(dict(self.execute("SELECT key, value FROM meta")), self.path)

    def set_place(self, place: Place, **others: int) -> None:
        self.set_numbers(**place._asdict(), check=_checksum(place), **others)

    def put_part(self, generation: int, position: int, sealed: bytes) -> None:
        self.execute("INSERT INTO snapshot VALUES (?, ?, ?)", generation, position, sealed)

    def delete_old_rows(self, place: Place) -> bool:
        """Deletes some rows that the snapshot covers; returns whether there were any."""
        if self.row("SELECT 1 FROM journal WHERE id <= ? LIMIT 1", place.covered) is None:
            return False
        self.execute(
            "DELETE FROM journal WHERE id IN (SELECT id FROM journal WHERE id <= ? ORDER BY id LIMIT ?)",
            place.covered,
            ROWS_PER_STEP,
        )
        return True

    def delete_old_parts(self, place: Place) -> bool:
        """Deletes some parts of other snapshots; returns whether there were any."""
        if self.row("SELECT 1 FROM snapshot WHERE generation != ? LIMIT 1", place.generation) is None:
            return False
        self.execute(
            "DELETE FROM snapshot WHERE (generation, position) IN "
            "(SELECT generation, position FROM snapshot WHERE generation != ? LIMIT ?)",
            place.generation,
            ROWS_PER_STEP,
        )
        return True

    def snapshot(self, place: Place) -> Iterator[bytes]:
        """Row by row: a cursor held open would keep the log from being cut back."""
        position = 0
        while place.parts == UNKNOWN_PARTS or position < place.parts:
            row = self.row(
                "SELECT batch FROM snapshot WHERE generation = ? AND position = ?", place.generation, position
            )
            where = f"snapshot {place.generation}, part {position} of {self.path}"
            if row is None:
                if place.parts == UNKNOWN_PARTS:
                    return
                raise _damaged(f"{where} is missing", where)
            yield self._unsealed(row[0], where)
            position += 1

    def journal(self, first: int, last: int | None = None) -> Iterator[bytes]:
        """The rows from `first` to `last`, or all from `first` on."""
        expected = first
        while last is None or expected <= last:
            row = self.row("SELECT id, batch FROM journal WHERE id >= ? ORDER BY id LIMIT 1", expected)
            where = f"journal row {expected} of {self.path}"
            if row is None and last is None:
                return
            if row is None or row[0] != expected:
                raise _damaged(f"{where} is missing", where)
            yield self._unsealed(row[1], where)
            expected += 1

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns SQLite's errors into those of the protocol."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, str(error), str(self.path)) from error
            if error.sqlite_errorcode & _PRIMARY == sqlite3.SQLITE_ERROR and not self.database.in_transaction:
                # The statements are right, so the tables are wrong: a column, a table or the file's version differs.
                raise self._unusable(error) from error
            raise OSError(f"{self.path}: {error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> DamagedJournal:
        return _damaged(f"{self.path} is damaged: {str(error)!a:.300}", str(self.path))

    def _undo(self) -> None:
        with suppress(*SQLITE_ERRORS):
            self.database.rollback()

    def _unsealed(self, sealed: bytes, where: str) -> bytes:
        try:
            return unseal(sealed, where)
        except DamagedJournal as error:
            raise _damaged(error.message, where) from None

    def _check_format(self) -> None:
        found = self.number("format", FORMAT)
        if found != FORMAT:
            raise DamagedJournal(f"{self.path} has format {found}; this scheduler reads format {FORMAT}")
        self.set_numbers(format=FORMAT)


def place_in(numbers: Mapping[object, object], path: Path) -> Place:
    """DamagedJournal when a value is not a number, or was changed since they were written together."""
    generation, covered, parts = (
        _number(numbers.get(key, default), key, path)
        for key, default in (("generation", 0), ("covered", 0), ("parts", UNKNOWN_PARTS))
    )
    place = Place(generation, covered, parts)
    if _number(numbers.get("check", _checksum(place)), "check", path) != _checksum(place):
        raise _damaged(f"the numbers in {path} do not match their checksum", str(path))
    return place


def _number(found: object, key: str, path: Path) -> int:
    if not isinstance(found, int):
        raise _damaged(f"{path} is damaged: its {key} is not a number", str(path))
    return found


def _damaged(what: str, where: str) -> DamagedJournal:
    return DamagedJournal(
        f"{what}; restore a copy, or set store.repair=true to continue without the unreadable records", where=where
    )


def _checksum(place: Place) -> int:
    return zlib.crc32(repr(tuple(place)).encode())
