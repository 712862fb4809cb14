"""The rows of the shared journal. Every write is one statement, which takes effect only under the leader's epoch.

FOR KEY SHARE lets the lease be renewed in the meantime, and conflicts only with a change of the epoch, which is a key:
a takeover waits for the statement in progress, and every later one of the old leader finds another epoch.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from parlmesh.postgres.database import Lane

from ...journal.records import DamagedJournal, unseal
from ..protocol import Deposed
from ..row_compaction import Place

WRITE_SECONDS = 30.0
READ_SECONDS = 30.0
# Rows per answer, fewer when they are large.
_MOST_ROWS = 1000
_MOST_BYTES = 8 << 20
_ROWS_PER_DELETION = 2000

# If the previous row is missing, the database has lost rows that it had acknowledged.
_APPEND = """INSERT INTO parlmesh.journal (id, epoch, batch) SELECT $3::bigint, $1::bigint, $4::bytea
    FROM parlmesh.leader WHERE leader.epoch = $1::bigint AND leader.holder = $2::text
    AND ($3 <= leader.covered + 1 OR EXISTS (SELECT FROM parlmesh.journal WHERE id = $3 - 1))
    FOR KEY SHARE OF leader"""
# Commits after the row, so that its own wait for the standbys covers the row's.
_SETTLE = """UPDATE parlmesh.leader SET settled = $3 WHERE epoch = $1 AND holder = $2
    AND EXISTS (SELECT FROM parlmesh.journal WHERE id = $3 AND epoch = $1 AND batch = $4)"""
_PUT_PART = """INSERT INTO parlmesh.snapshot SELECT $3::bigint, $4::bigint, $5::bytea
    FROM parlmesh.leader WHERE leader.epoch = $1::bigint AND leader.holder = $2::text FOR KEY SHARE"""
_SET_PLACE = "UPDATE parlmesh.leader SET generation = $3, covered = $4, parts = $5 WHERE epoch = $1 AND holder = $2"
_DELETE_ROWS = """WITH fence AS MATERIALIZED (
        SELECT FROM parlmesh.leader WHERE leader.epoch = $1::bigint AND leader.holder = $2::text FOR KEY SHARE)
    DELETE FROM parlmesh.journal USING fence WHERE id IN
    (SELECT id FROM parlmesh.journal WHERE id <= $3 ORDER BY id LIMIT $4)"""
_DELETE_PARTS = """WITH fence AS MATERIALIZED (
        SELECT FROM parlmesh.leader WHERE leader.epoch = $1::bigint AND leader.holder = $2::text FOR KEY SHARE)
    DELETE FROM parlmesh.snapshot USING fence WHERE (generation, position) IN
    (SELECT generation, position FROM parlmesh.snapshot WHERE generation != $3 LIMIT $4)"""
_PART = "SELECT batch FROM parlmesh.snapshot WHERE generation = $1 AND position = $2"
_JOURNAL = """SELECT id, batch FROM parlmesh.journal JOIN (
        SELECT id, sum(octet_length(batch)) OVER (ORDER BY id) - octet_length(batch) AS before FROM (
            SELECT id, batch FROM parlmesh.journal WHERE id >= $1 ORDER BY id LIMIT $2) AS next
    ) AS sized USING (id) WHERE before < $3 ORDER BY id"""


class Claim(NamedTuple):
    """A leader's right to write. The holder is unique to a term, because a database set back repeats epochs."""

    epoch: int
    holder: str


class Rows:
    """The journal over one connection, read by any scheduler and written under a claim. OSError when the database
    cannot be reached."""

    def __init__(self, lane: Lane, where: str) -> None:
        self._lane = lane
        self._where = where
        self.claim = Claim(-1, "")

    def place(self) -> Place:
        row = self._fetch("SELECT generation, covered, parts FROM parlmesh.leader")[0]
        return Place(row[0], row[1], row[2])

    def append(self, number: int, sealed: bytes) -> None:
        """Deposed when another leads; DamagedJournal when acknowledged rows are missing."""
        if not self._write(_APPEND, number, sealed):
            self._explain(number)

    def settle(self, number: int, sealed: bytes) -> bool:
        """Whether an append that seemed to fail was done; it is then as durable as any other."""
        return self._write(_SETTLE, number, sealed) > 0

    def renew_identity(self, identity: int) -> None:
        self._write_fenced("UPDATE parlmesh.leader SET identity = $3 WHERE epoch = $1 AND holder = $2", identity)

    def put_part(self, generation: int, position: int, sealed: bytes) -> None:
        self._write_fenced(_PUT_PART, generation, position, sealed)

    def set_place(self, place: Place) -> None:
        self._write_fenced(_SET_PLACE, *place)

    def delete_old_rows(self, place: Place) -> bool:
        return self._write(_DELETE_ROWS, place.covered, _ROWS_PER_DELETION) > 0

    def delete_old_parts(self, place: Place) -> bool:
        return self._write(_DELETE_PARTS, place.generation, _ROWS_PER_DELETION) > 0

    def snapshot(self, place: Place) -> Iterator[bytes]:
        for position in range(place.parts):
            rows = self._fetch(_PART, place.generation, position)
            where = f"snapshot {place.generation}, part {position} of {self._where}"
            if not rows:
                raise DamagedJournal(f"{where} is missing; restore the database from its backup", where=where)
            yield unseal(rows[0][0], where)

    def journal(self, first: int, last: int | None = None) -> Iterator[bytes]:
        """The rows from `first` to `last`, or all from `first` on."""
        expected = first
        while last is None or expected <= last:
            rows = self._fetch(_JOURNAL, expected, _MOST_ROWS, _MOST_BYTES)
            if not rows and last is None:
                return
            if not rows or rows[0][0] != expected:
                raise DamagedJournal(f"journal row {expected} of {self._where} is missing; restore the database")
            for number, sealed in rows:
                if last is not None and number > last:
                    return
                where = f"journal row {number} of {self._where}"
                if number != expected:
                    raise DamagedJournal(f"journal row {expected} of {self._where} is missing; restore the database")
                yield unseal(sealed, where)
                expected += 1

    def has(self, number: int) -> bool:
        return bool(self._fetch("SELECT FROM parlmesh.journal WHERE id = $1", number))

    def _explain(self, number: int) -> None:
        mine = self._fetch("SELECT FROM parlmesh.leader WHERE epoch = $1 AND holder = $2", *self.claim)
        if not mine:
            raise Deposed(f"another scheduler has led {self._where} since epoch {self.claim.epoch}")
        raise DamagedJournal(
            f"{self._where} has lost journal row {number - 1}, which was acknowledged: perhaps it failed over to a "
            "standby that was behind",
            where=self._where,
        )

    def _write_fenced(self, statement: str, *values: object) -> None:
        if not self._write(statement, *values):
            raise Deposed(f"another scheduler has led {self._where} since epoch {self.claim.epoch}")

    def _write(self, statement: str, *values: object) -> int:
        """Returns how many rows were written."""
        status = self._lane.run(lambda connection: connection.execute(statement, *self.claim, *values), WRITE_SECONDS)
        return int(str(status).rpartition(" ")[2])

    def _fetch(self, statement: str, *values: object) -> list[Any]:
        return self._lane.run(lambda connection: connection.fetch(statement, *values), READ_SECONDS)
