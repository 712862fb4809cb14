"""Makes a damaged store readable again from everything that can be read, and logs the losses.

The damaged files are kept beside the new ones. Only done when an operator asks for it (`store.repair`).
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from parlmesh.durable_files import sync_folder
from parlmesh.high_water_mark import Seen
from parlmesh.sqlite_errors import SQLITE_ERRORS
from parlmesh.telemetry import get_logger

from ..journal.compaction import Compactor
from ..journal.records import DamagedJournal, seal, unseal, unsealed_beginning
from ..journal.skipped_records import UnreadableRecords
from .protocol import new_identity
from .row_compaction import SNAPSHOT_BATCH_BYTES, UNKNOWN_PARTS, Place
from .sqlite_tables import Tables, place_in

log = get_logger("parlmesh.scheduler")

# After this many unreadable rows in a row nothing more is expected.
MOST_UNREADABLE_ROWS = 10_000
# Less than a page, so that only lost bytes are left out.
PIECE_BYTES = 64


def repair(path: Path, seen: Seen | None) -> bool:
    """Returns whether a repair was necessary. The caller has the store's lock."""
    try:
        check(path, seen)
        return False
    except DamagedJournal as error:
        why = error.message
    unreadable = UnreadableRecords()
    compactor = Compactor(unreadable)
    last_id = _Salvage(path, unreadable).read_into(compactor)
    if seen is not None and seen.last_id > last_id:
        gone = seen.last_id - last_id
        unreadable.add(f"{gone} batches after row {last_id}, which were acknowledged and are lost", gone)
        last_id = seen.last_id
    fresh = path.with_name(path.name + ".repaired")
    _remove(fresh)
    _write(fresh, compactor, last_id)
    kept = _move_aside(path)
    fresh.rename(path)
    sync_folder(path.parent)
    unreadable.tell(str(path))
    log.error(
        "journal_repaired",
        path=str(path),
        damage=why,
        tasks=compactor.tasks,
        left_out=unreadable.count,
        damaged_copy=str(kept),
    )
    return True


def check(path: Path, seen: Seen | None) -> None:
    """DamagedJournal unless everything can be read and nothing that the witness saw is missing."""
    check_presence(path, seen)
    if not path.exists():
        return
    tables = Tables(path)
    try:
        with tables.errors():
            check_identity(path, tables.number("identity"), seen)
            place = tables.place()
            last_id = place.covered
            for _ in tables.snapshot(place):
                continue
            for _ in tables.journal(place.covered + 1):
                last_id += 1
            check_length(path, last_id, seen)
    finally:
        tables.close()


def check_presence(path: Path, seen: Seen | None) -> None:
    if seen is not None and (not path.exists() or not path.stat().st_size):
        what = "is empty" if path.exists() else "is gone"
        raise DamagedJournal(
            f"{path} {what}; it had {seen.last_id} batches. Restore it, or set store.repair=true to start without "
            "the tasks accepted before",
            where=str(path),
        )


def check_identity(path: Path, identity: int, seen: Seen | None) -> None:
    if seen is not None and identity != seen.identity:
        what = "has lost its header" if not identity else "is not the store that was here before"
        raise DamagedJournal(
            f"{path} {what}. Restore it, or set store.repair=true to continue with the tasks it has", where=str(path)
        )


def check_length(path: Path, last_id: int, seen: Seen | None) -> None:
    if seen is not None and last_id < seen.last_id:
        raise DamagedJournal(
            f"{path} ends with row {last_id} and had {seen.last_id}: {seen.last_id - last_id} batches that were "
            "acknowledged are lost, perhaps with the file ending in -wal. Restore it, or set store.repair=true to "
            "continue without them",
            where=str(path),
        )


class _Salvage:
    """Reads all readable batches, row by row."""

    def __init__(self, path: Path, unreadable: UnreadableRecords) -> None:
        self._path = path
        self._unreadable = unreadable

    def read_into(self, compactor: Compactor) -> int:
        """Reads everything readable; returns the last row."""
        if not self._path.exists() or not self._path.stat().st_size:
            return 0
        try:
            database = sqlite3.connect(self._path, isolation_level=None)
            # Otherwise SQLite refuses the whole of a file that is shorter than its header says.
            database.execute("PRAGMA writable_schema = ON")
        except SQLITE_ERRORS as error:
            self._unreadable.add(f"all of {self._path}: {error}")
            return 0
        try:
            place = self._place(database)
            for batch in self._snapshot(database, place):
                compactor.read(batch)
            last_id = place.covered
            for number, batch in self._journal(database, place.covered + 1):
                compactor.read(batch)
                last_id = number
            return last_id
        finally:
            database.close()

    def _place(self, database: sqlite3.Connection) -> Place:
        """The place in the stored numbers if they are intact, else that of the newest snapshot."""
        try:
            return place_in(dict(database.execute("SELECT key, value FROM meta")), self._path)
        except (*SQLITE_ERRORS, DamagedJournal) as error:
            self._unreadable.add(f"the numbers of {self._path}: {error}")
        with suppress(*SQLITE_ERRORS):
            (newest,) = database.execute("SELECT MAX(generation) FROM snapshot").fetchone()
            return Place(newest or 0)
        return Place()

    def _snapshot(self, database: sqlite3.Connection, place: Place) -> Iterator[bytes]:
        position = 0
        while place.parts == UNKNOWN_PARTS or position < place.parts:
            where = f"snapshot {place.generation}, part {position}"
            try:
                row = _part(database, place.generation, position)
                if row is None and place.parts == UNKNOWN_PARTS:
                    return
                if row is None:
                    self._unreadable.add(f"{where} is missing")
                else:
                    yield self._batch(database, "snapshot", row, where)
            except (*SQLITE_ERRORS, DamagedJournal) as error:
                self._unreadable.add(f"{where}: {error}")
                if place.parts == UNKNOWN_PARTS:
                    return
            position += 1

    def _journal(self, database: sqlite3.Connection, first: int) -> Iterator[tuple[int, bytes]]:
        # Rows that cannot be found may be a hole in the journal, or lie beyond its end.
        expected, sought, why = first, 0, ""
        while sought < MOST_UNREADABLE_ROWS:
            try:
                row = database.execute(
                    "SELECT id FROM journal WHERE id >= ? ORDER BY id LIMIT 1", (expected + sought,)
                ).fetchone()
            except SQLITE_ERRORS as error:
                sought, why = sought + 1, f": {error}"
                continue
            if row is None:
                break
            if row[0] != expected:
                missing = row[0] - expected
                self._unreadable.add(f"journal rows {expected} to {row[0] - 1} are missing{why}", missing)
            expected, sought, why = row[0], 0, ""
            try:
                yield expected, self._batch(database, "journal", expected, f"journal row {expected}")
            except (*SQLITE_ERRORS, DamagedJournal) as error:
                self._unreadable.add(f"journal row {expected}: {error}")
            expected += 1
        if why:
            self._unreadable.add(f"what follows journal row {expected - 1}{why}")

    def _batch(self, database: sqlite3.Connection, table: str, row: int, where: str) -> bytes:
        """A row's content; only its beginning, which no checksum covers, if the rest is on lost pages."""
        with database.blobopen(table, "batch", row, readonly=True) as batch:
            try:
                return unseal(batch.read(), where)
            except SQLITE_ERRORS as error:
                beginning = _beginning(batch)
                self._unreadable.add(f"{where}: {len(batch) - len(beginning)} of {len(batch)} bytes: {error}")
                return unsealed_beginning(beginning, where)


def _part(database: sqlite3.Connection, generation: int, position: int) -> int | None:
    """A part's row, found by the index or, if that is damaged, by scanning the table."""
    statement = "SELECT rowid FROM snapshot {} WHERE generation = ? AND position = ?"
    try:
        row = database.execute(statement.format(""), (generation, position)).fetchone()
    except SQLITE_ERRORS:
        row = database.execute(statement.format("NOT INDEXED"), (generation, position)).fetchone()
    return None if row is None else int(row[0])


def _beginning(batch: sqlite3.Blob) -> bytes:
    """As much of a batch as can be read."""
    read = bytearray()
    batch.seek(0)
    with suppress(*SQLITE_ERRORS):
        while piece := batch.read(PIECE_BYTES):
            read += piece
    return bytes(read)


def _write(path: Path, compactor: Compactor, last_id: int) -> None:
    tables = Tables(path)
    try:
        with tables.errors():
            parts = 0
            for batch in compactor.write(SNAPSHOT_BATCH_BYTES):
                tables.execute("INSERT INTO snapshot VALUES (1, ?, ?)", parts, seal(batch))
                parts += 1
            # A new identity tells clients that acknowledged tasks may be lost.
            tables.set_place(Place(1, last_id, parts), identity=new_identity())
    finally:
        tables.close()


def _move_aside(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{ending}", f"{kept}{ending}")
    return kept


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
