"""The scheduler's interface to a store. Calls block; they are made before serving or from the committer's thread."""

import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from parlmesh.errors import Unavailable

from ..journal.compaction import Compactor
from ..journal.standby_core import Understudy

LEASES_PER_START = 1 << 32
# Leaves room for a million starts after it.
LATEST_START = (1 << 32) - (1 << 20)


class Deposed(Unavailable):
    """Another scheduler leads: nothing that this one has decided since is kept or told."""

    default_reason = "NOT_LEADER"


class Opened(NamedTuple):
    """The data that a store gives to a scheduler at its start."""

    # Above every lease id that any earlier start can have used, committed or not.
    lease_floor: int
    # Encoded batches, oldest first, each whole. To be read before the first append.
    batches: Iterator[bytes]
    # The records that a standby has already read; the batches come after them.
    warm: Compactor | None = None
    # The core that a standby has kept ready from it; then there are no batches.
    understudy: Understudy | None = None


class Store(Protocol):
    """A journal of batches of records."""

    # False: records are lost with the process, so no caller needs to wait for them.
    durable: bool
    # Identifies the stored memory; valid once the batches were read. Changes when acknowledged records are missing.
    identity: int

    def open(self, wall_time: float) -> Opened:
        """Takes the store for this process alone; FailedPrecondition when another has it."""

    def append(self, batch: bytes, records: int) -> None:
        """Keeps a batch; when this returns it is as durable as the store can make it. Raises OSError otherwise."""

    def renew_identity(self) -> None:
        """Called after the batches were read, if something acknowledged was not among them."""

    def check(self) -> None:
        """OSError if records appended now would be lost; cheap, and called from time to time."""

    def wants_compaction(self) -> bool:
        """Whether enough was appended since the last compaction."""

    def compact(self) -> Iterator[None]:
        """Compacts the journal in short steps, between which appends are possible."""

    def close(self) -> None:
        """Releases the store."""


class SharedStore(Store, Protocol):
    """A journal that several schedulers follow and one writes."""

    lease_seconds: float
    # Address of the scheduler that led at the last check; empty = none did.
    leader: str
    # Schedulers that stood by at the last check, including this one.
    standbys: int
    # When the leader's lease ends unless it is renewed, by the monotonic clock.
    lapses_at: float

    def stand_by(self, wall_time: float) -> Opened | None:
        """Reads new records, and takes over when no scheduler leads; called repeatedly until then."""

    def trusted(self) -> bool:
        """Whether no other scheduler can lead yet. Does not block."""

    def keep(self, on_trust: Callable[[bool], None], on_deposed: Callable[[], None]) -> None:
        """Renews the lease from now on; the callbacks come from another thread."""

    def step_down(self) -> None:
        """Lets others lead; this store stands by again."""


def new_identity() -> int:
    """Never 0, and small enough for SQLite."""
    return secrets.randbits(62) + 1


def next_floor(last_lease: int, wall_time: float) -> int:
    """Follows the time, so it grows even if a store was lost, and is always above the last start's.

    Lease ids have 64 bits on the wire; the time counts up to the year 2106.
    """
    return max(min(int(wall_time), LATEST_START), (last_lease // LEASES_PER_START) + 1) * LEASES_PER_START
