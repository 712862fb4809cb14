"""A standby's warm memory: the journal, compacted as it grows, so that a takeover reads only its last rows."""

from collections.abc import Callable

from ...core.core import Core
from ...journal.compaction import Compactor
from ...journal.records import DamagedJournal, count
from ...journal.standby_core import Understudy
from ...process_memory import garbage_collection_paused
from ..row_compaction import Place
from .journal_rows import Rows


class Follower:
    """Reads on from where it was. Starts over when the leader has deleted rows that it had not read."""

    def __init__(self, rows: Rows, new_core: Callable[[], Core] | None, clock: Callable[[], float]) -> None:
        self._rows = rows
        self._new_core = new_core
        self._clock = clock
        self.compactor = Compactor()
        # Set once all existing rows have been read.
        self.understudy: Understudy | None = None
        self.place = Place(0, 0, 0)
        self.last_id = 0
        # Records read since the snapshot.
        self.records = 0
        # Whether rows that this standby had read are no longer in the database.
        self.lost = False
        self._begun = False

    def follow(self, covered: int) -> None:
        """Reads all existing rows. `covered` is the last row in the leader's snapshot."""
        if not self._begun or (covered > self.last_id and not self._rows.has(self.last_id + 1)):
            self._begin()
        elif self.last_id > covered and not self._rows.has(self.last_id):
            self.lost = True
            self._begin()
        self._read_on()
        if self._begun and self.understudy is None and self._new_core is not None:
            with garbage_collection_paused():
                self.understudy = Understudy(self._new_core(), self.compactor, self._clock())

    def _begin(self) -> None:
        self._begun = False
        self.compactor, self.understudy, self.records = Compactor(), None, 0
        self.place = self._rows.place()
        try:
            for batch in self._rows.snapshot(self.place):
                self.compactor.read(batch)
        except DamagedJournal:
            # The leader may have compacted in the meantime, which changes the position.
            if self._rows.place() == self.place:
                raise
            return
        self.last_id = self.place.covered
        self._begun = True

    def _read_on(self) -> None:
        if not self._begun:
            return
        try:
            for batch in self._rows.journal(self.last_id + 1):
                self.compactor.read(batch)
                if self.understudy is not None:
                    self.understudy.read(batch, self._clock())
                self.last_id += 1
                self.records += count(batch)
        except DamagedJournal:
            if self._rows.place().covered <= self.last_id:
                raise
            self._begun = False

    @property
    def caught_up(self) -> bool:
        """Whether it had read all rows at the last check."""
        return self._begun
