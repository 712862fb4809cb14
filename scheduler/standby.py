"""A scheduler while another leads: it follows the journal and waits for its turn."""

import asyncio
import time

from parlmesh.rpc.task_group import set_within
from parlmesh.telemetry import get_logger

from .journal.records import DamagedJournal
from .store import Opened, SharedStore
from .wire.leader_redirect import Seat

log = get_logger("parlmesh.scheduler")

# How often a standby looks during one lease.
LOOKS_PER_LEASE = 20
_SHORTEST_SECONDS = 0.005


class Standby:
    """Checks the lease repeatedly, in another thread so that the server can keep refusing callers."""

    def __init__(self, store: SharedStore, seat: Seat) -> None:
        self._store = store
        self._seat = seat
        self._pause_seconds = store.lease_seconds / LOOKS_PER_LEASE

    async def wait(self, stop: asyncio.Event) -> Opened | None:
        """The store, once this scheduler leads; None when told to stop."""
        said: str | None = None
        failing = False
        while not stop.is_set():
            try:
                opened = await asyncio.to_thread(self._store.stand_by, time.time())
                failing = False
            except (OSError, DamagedJournal) as error:
                opened = None
                # Each error is logged once: a database that stays unreachable must not fill the log.
                (log.debug if failing else log.error)("cannot_stand_by", error=str(error))
                failing = True
            if opened is not None:
                return opened
            self._seat.leader, self._seat.standbys = self._store.leader, self._store.standbys
            if said != self._store.leader:
                said = self._store.leader
                log.info("standing_by", leader=said)
            await set_within(stop, self._pause_seconds if failing else self._pause())
        return None

    def _pause(self) -> float:
        """Ends with the lease at the latest, because no scheduler leads until a standby checks."""
        remaining = self._store.lapses_at - time.monotonic()
        return min(max(remaining, _SHORTEST_SECONDS), self._pause_seconds)
