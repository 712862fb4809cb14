"""A journal in one SQLite file: WAL, one writer, one row per batch, a checksum on each.

`snapshot` holds the compacted journal up to the row named in `meta`, `journal` everything after it. A snapshot is
written beside the old one and becomes valid with one update of `meta`, so a crash at any moment leaves a whole one.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from parlmesh.high_water_mark import Seen, Witness
from parlmesh.telemetry import get_logger

from ..journal.compaction import Compactor
from ..journal.records import count, seal
from .compaction_schedule import CompactionSchedule
from .file_ownership import Custody
from .protocol import LEASES_PER_START, Opened, new_identity, next_floor
from .row_compaction import Place, shorten
from .sqlite_repair import check_identity, check_length, check_presence, repair
from .sqlite_tables import Tables

log = get_logger("parlmesh.scheduler")


class SqliteStore:
    """Survives the process; with `full`, also a power loss."""

    durable = True

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Literal["full", "normal"] = "full",
        repair: bool = False,
        compact_records: int = 200_000,
        compact_bytes: int = 128 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._repair = repair
        self._schedule = CompactionSchedule(compact_records=compact_records, compact_bytes=compact_bytes, clock=clock)
        self._custody = Custody(path)
        self._witness = Witness(path)
        self._tables: Tables | None = None
        self._place = Place()
        self._last_id = 0
        self.identity = 0

    @property
    def tables(self) -> Tables:
        assert self._tables is not None, f"{self._path} is not open"
        return self._tables

    def open(self, wall_time: float) -> Opened:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._custody.take_name()
        try:
            seen = self._seen()
            if self._repair and repair(self._path, seen):
                seen = None
            check_presence(self._path, seen)
            self._custody.take_file()
            self._tables = Tables(self._path, self._synchronous)
            floor = self._begin(wall_time, seen)
            self._custody.watch()
        except BaseException:
            self.close()
            raise
        return Opened(floor, self._read_all(seen))

    def append(self, batch: bytes, records: int) -> None:
        self._custody.check()
        tables, sealed = self.tables, seal(batch)
        tables.check_settled()
        with tables.errors():
            try:
                tables.database.execute("INSERT INTO journal VALUES (?, ?)", (self._last_id + 1, sealed))
            except sqlite3.IntegrityError:
                # A retry of a commit that only seemed to fail.
                if tables.row("SELECT batch FROM journal WHERE id = ?", self._last_id + 1) != (sealed,):
                    raise
        self._last_id += 1
        self._schedule.add(records, len(batch))
        self._witness.note(self._last_id)

    def renew_identity(self) -> None:
        self.identity = new_identity()
        with self.tables.errors():
            self.tables.set_numbers(identity=self.identity)
        self._witness.begin(self.identity, self._last_id)

    def check(self) -> None:
        self._custody.check()

    def wants_compaction(self) -> bool:
        return self._schedule.is_due()

    def compact(self) -> Iterator[None]:
        self._schedule.begin()
        with self.tables.errors():
            yield from self._compact()

    def close(self) -> None:
        if self._tables is not None:
            self._tables.close()
            self._tables = None
        self._witness.close()
        self._custody.release()

    def _seen(self) -> Seen | None:
        seen = self._witness.read()
        if seen is not None and not seen.same_boot and self._synchronous == "normal":
            # After a power loss this setting may have lost the newest rows, as its help says.
            return seen._replace(last_id=0)
        return seen

    def _begin(self, wall_time: float, seen: Seen | None) -> int:
        tables = self.tables
        with tables.errors():
            identity = tables.number("identity")
            check_identity(self._path, identity, seen)
            self._place = tables.place()
            tables.execute("DELETE FROM snapshot WHERE generation != ?", self._place.generation)
            tables.execute("DELETE FROM journal WHERE id <= ?", self._place.covered)
            # An older store has the whole floor, which SQLite's integers can hold until 2038.
            last = max(tables.number("lease_floor"), tables.number("starts") * LEASES_PER_START)
            floor = next_floor(last, wall_time)
            self.identity = identity or new_identity()
            tables.set_numbers(starts=floor // LEASES_PER_START, identity=self.identity)
        return floor

    def _read_all(self, seen: Seen | None) -> Iterator[bytes]:
        tables = self.tables
        with tables.errors():
            for batch in tables.snapshot(self._place):
                self._schedule.live_bytes += len(batch)
                yield batch
            self._last_id = self._place.covered
            for batch in tables.journal(self._place.covered + 1):
                yield batch
                self._last_id += 1
                self._schedule.add(count(batch), len(batch))
        check_length(self._path, self._last_id, seen)
        self._witness.begin(self.identity, self._last_id)

    def _compact(self) -> Iterator[None]:
        def switched(place: Place, compactor: Compactor, size: int) -> None:
            self._place = place
            self._schedule.succeed(compactor.tasks, size)
            compactor.unreadable.tell(str(self._path))

        yield from shorten(self.tables, self._place, self._last_id, switched)
