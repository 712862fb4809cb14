"""Who leads: a lease in one row, counted by the database's clock, renewed in its own thread.

The lease says when others may take over; the epoch, not the lease, keeps an old leader from writing.
"""

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from parlmesh.errors import FleetError
from parlmesh.postgres.database import Lane
from parlmesh.telemetry import get_logger

from ..protocol import LATEST_START
from .journal_rows import Claim

log = get_logger("parlmesh.scheduler")

RENEWALS_PER_LEASE = 4
# The share of a lease for which it is trusted: two machines' clocks do not run at exactly the same rate.
TRUSTED_SHARE = 0.95

_TAKE = """UPDATE parlmesh.leader SET epoch = epoch + 1, holder = $1, address = $2,
    until = clock_timestamp() + make_interval(secs => $3), starts = greatest(least($4::bigint, $5::bigint), starts + 1)
    WHERE until < clock_timestamp() RETURNING epoch, starts, identity"""
_RENEW = """UPDATE parlmesh.leader SET until = clock_timestamp() + make_interval(secs => $3)
    WHERE epoch = $1 AND holder = $2"""
_RELEASE = "UPDATE parlmesh.leader SET until = clock_timestamp() WHERE epoch = $1 AND holder = $2"
# A session with such a name is a standby's unless it is the leader's; the database cuts long names.
SESSION = "parlmesh-scheduler "
_LOOK = f"""SELECT address, until < clock_timestamp() AS lapsed, identity, covered,
    extract(epoch FROM until)::float8 - extract(epoch FROM clock_timestamp())::float8 AS remaining,
    (SELECT count(DISTINCT application_name) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name LIKE '{SESSION}%' AND application_name <> left('{SESSION}' || address, 63)) AS standbys
    FROM parlmesh.leader"""  # noqa: S608  # a constant


class Taken(NamedTuple):
    """The data of a new leader."""

    claim: Claim
    starts: int
    identity: int


class Seen(NamedTuple):
    """The leader's row as a standby sees it."""

    address: str
    lapsed: bool
    identity: int
    covered: int
    standbys: int
    remaining: float
    """Seconds left of the lease, by the database's clock."""


def boot_clock() -> float:
    """A clock that runs while the machine sleeps, as the database's does."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class Leadership:
    """Takes the lease and keeps it; every method but `trusted` blocks."""

    def __init__(
        self, lane: Lane, *, address: str, lease_seconds: float, clock: Callable[[], float] = boot_clock
    ) -> None:
        self._lane = lane
        self.address = address
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._claim: Claim | None = None
        self._trusted_until = float("-inf")
        self._ending = threading.Event()
        self._keeper: threading.Thread | None = None

    def look(self) -> Seen:
        row = self._lane.run(lambda connection: connection.fetchrow(_LOOK), self._lease_seconds)
        return Seen(row["address"], row["lapsed"], row["identity"], row["covered"], row["standbys"], row["remaining"])

    def take(self, wall_time: float) -> Taken | None:
        """Takes the lease; None while another scheduler has it."""
        holder, start = secrets.token_hex(16), self._clock()

        async def take(connection: Any) -> Any:
            return await connection.fetchrow(
                _TAKE, holder, self.address, self._lease_seconds, int(wall_time), LATEST_START
            )

        row = self._lane.run(take, self._lease_seconds)
        if row is None:
            return None
        self._claim = Claim(row["epoch"], holder)
        self._trusted_until = start + TRUSTED_SHARE * self._lease_seconds
        return Taken(self._claim, row["starts"], row["identity"])

    def keep(self, on_trust: Callable[[bool], None], on_deposed: Callable[[], None]) -> None:
        """Renews until `release`. The callbacks are called in the keeper's thread, once for every change."""
        assert self._claim is not None
        self._ending.clear()
        arguments = (self._claim, on_trust, on_deposed)
        self._keeper = threading.Thread(target=self._keep, args=arguments, name="leadership", daemon=True)
        self._keeper.start()

    def trusted(self) -> bool:
        """Whether no other scheduler can have taken over yet; counted from the start of the last renewal."""
        return self._clock() < self._trusted_until

    def release(self) -> None:
        """Stops renewing, and lets others take over immediately."""
        self._ending.set()
        if self._keeper is not None:
            self._keeper.join(self._lease_seconds + 1.0)
            self._keeper = None
        claim, self._claim = self._claim, None
        self._trusted_until = float("-inf")
        if claim is not None:
            try:
                self._lane.run(lambda connection: connection.execute(_RELEASE, *claim), self._lease_seconds)
            except (OSError, FleetError) as error:
                log.warning("lease_not_released", error=str(error))

    def _keep(self, claim: Claim, on_trust: Callable[[bool], None], on_deposed: Callable[[], None]) -> None:
        told = True
        while not self._ending.wait(self._lease_seconds / RENEWALS_PER_LEASE):
            try:
                if not self._renew(claim):
                    self._trusted_until = float("-inf")
                    log.warning("deposed", epoch=claim.epoch)
                    on_deposed()
                    return
            except (OSError, FleetError) as error:
                if told:
                    log.warning("lease_not_renewed", error=str(error))
            if self.trusted() != told:
                told = not told
                log.info("lease_renewed_again" if told else "lease_lapsed", epoch=claim.epoch)
                on_trust(told)

    def _renew(self, claim: Claim) -> bool:
        start = self._clock()
        # Shorter than the lease: a connection that hangs is dropped while there is time for another.
        seconds = self._lease_seconds / 2
        status = self._lane.run(lambda connection: connection.execute(_RENEW, *claim, self._lease_seconds), seconds)
        if status != "UPDATE 1":
            return False
        self._trusted_until = start + TRUSTED_SHARE * self._lease_seconds
        return True
