"""The shared journal behind the Store protocol: dense rows under an epoch, a lease, and a standby's warm memory."""

import time
from collections.abc import Callable, Iterator
from typing import Literal

from parlmesh.errors import FailedPrecondition
from parlmesh.postgres.connection_settings import Target
from parlmesh.postgres.database import Database
from parlmesh.postgres.schema import check_version
from parlmesh.telemetry import get_logger

from ...core.core import Core
from ...journal.compaction import Compactor
from ...journal.records import DamagedJournal, count, seal
from ..compaction_schedule import CompactionSchedule
from ..protocol import LEASES_PER_START, Deposed, Opened, new_identity
from ..row_compaction import Place, shorten
from .journal_rows import READ_SECONDS, Claim, Rows
from .leader_lease import SESSION, Leadership, Taken
from .standby_journal import Follower

log = get_logger("parlmesh.scheduler")

CHECK_SECONDS = 5.0


class PostgresStore:
    """Survives the process and the machine: as durable as the database's commits."""

    durable = True

    def __init__(
        self,
        target: Target,
        *,
        synchronous: Literal["full", "normal"] = "full",
        compact_records: int = 200_000,
        compact_bytes: int = 128 << 20,
        lease_seconds: float = 2.0,
        address: str = "",
        new_core: Callable[[], Core] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where = str(target)
        self._schedule = CompactionSchedule(compact_records=compact_records, compact_bytes=compact_bytes, clock=clock)
        self._clock = clock
        self._new_core = new_core
        self._database = Database(target, synchronous=synchronous == "full", name=f"{SESSION}{address}")
        self._rows = Rows(self._database.lane(), self._where)
        self.lease_seconds = lease_seconds
        self._leadership = Leadership(self._database.lane(), address=address, lease_seconds=lease_seconds)
        self._follower: Follower | None = None
        self._checked = False
        self._place = Place()
        self._last_id = 0
        # Whether an append failed that may have been done.
        self._doubtful = False
        self.leader = ""
        self.standbys = 0
        self.lapses_at = float("inf")
        self.identity = 0

    def open(self, wall_time: float) -> Opened:
        self._check_schema()
        taken = self._leadership.take(wall_time)
        if taken is None:
            leader = self._leadership.look().address
            raise FailedPrecondition(
                f"{self._where} is led by another scheduler at {leader or 'an unknown address'}",
                reason="STORE_IN_USE",
                leader=leader,
            )
        self._lead(taken)
        return Opened(taken.starts * LEASES_PER_START, self._read_all())

    def stand_by(self, wall_time: float) -> Opened | None:
        """Reads new rows, and takes over when no scheduler leads; called repeatedly until then."""
        self._check_schema()
        follower = self._follower
        if follower is None:
            follower = self._follower = Follower(self._rows, self._new_core, self._clock)
        seen = self._leadership.look()
        self.leader, self.standbys = "" if seen.lapsed else seen.address, seen.standbys
        self.lapses_at = self._clock() + seen.remaining
        follower.follow(seen.covered)
        if not seen.lapsed or not follower.caught_up:
            return None
        taken = self._leadership.take(wall_time)
        if taken is None:
            return None
        try:
            return self._opened_warm(taken, follower)
        except BaseException:
            self._leadership.release()
            raise

    def trusted(self) -> bool:
        return self._leadership.trusted()

    def keep(self, on_trust: Callable[[bool], None], on_deposed: Callable[[], None]) -> None:
        self._leadership.keep(on_trust, on_deposed)

    def append(self, batch: bytes, records: int) -> None:
        sealed, number = seal(batch), self._last_id + 1
        if not (self._doubtful and self._rows.settle(number, sealed)):
            self._doubtful = True
            try:
                self._rows.append(number, sealed)
            except DamagedJournal:
                # With a new identity, clients resend tasks that the remaining journal lacks.
                self._rows.renew_identity(new_identity())
                raise
        self._doubtful = False
        self._last_id = number
        self._schedule.add(records, len(batch))

    def renew_identity(self) -> None:
        identity = new_identity()
        self._rows.renew_identity(identity)
        self.identity = identity

    def check(self) -> None:
        """OSError unless the database answers; the keeper watches who leads."""
        self._rows.place()

    def wants_compaction(self) -> bool:
        return self._schedule.is_due()

    def compact(self) -> Iterator[None]:
        self._schedule.begin()
        # Read from the database, because a switch whose answer was lost counts too.
        self._place = self._rows.place()

        def switched(place: Place, compactor: Compactor, size: int) -> None:
            self._place = place
            self._schedule.succeed(compactor.tasks, size)
            compactor.unreadable.tell(self._where)

        yield from shorten(self._rows, self._place, self._last_id, switched)

    def step_down(self) -> None:
        """Lets others lead; this store stands by again."""
        self._leadership.release()
        self._rows.claim = Claim(-1, "")
        self._follower = None

    def close(self) -> None:
        self._leadership.release()
        self._database.close()

    def _check_schema(self) -> None:
        if not self._checked:
            self._database.lane().run(check_version, READ_SECONDS)
            self._checked = True

    def _lead(self, taken: Taken) -> None:
        self._rows.claim, self.identity = taken.claim, taken.identity
        self.leader, self._doubtful = self._leadership.address, False
        # Only bytes that this process appended count.
        self._schedule.new_records = 0
        log.info("leading", epoch=taken.claim.epoch, store=self._where)

    def _read_all(self) -> Iterator[bytes]:
        self._place = self._rows.place()
        yield from self._rows.snapshot(self._place)
        self._last_id = self._place.covered
        for batch in self._rows.journal(self._place.covered + 1):
            yield batch
            self._last_id += 1
            self._schedule.new_records += count(batch)

    def _opened_warm(self, taken: Taken, follower: Follower) -> Opened:
        self._lead(taken)
        # Rows that the old leader wrote between the last check and the change of the epoch.
        follower.follow(self._rows.place().covered)
        if not follower.caught_up:
            raise Deposed("the journal was compacted while it was taken over")
        self._follower = None
        self._place, self._last_id = follower.place, follower.last_id
        self._schedule.new_records = follower.records
        if follower.lost:
            log.error("acknowledged_rows_lost", store=self._where)
            self.renew_identity()
        return Opened(taken.starts * LEASES_PER_START, iter(()), follower.compactor, follower.understudy)
