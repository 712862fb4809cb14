"""What the scheduler asks of a store. Calls block; they are made before serving or from the committer's thread."""

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
    """Another scheduler leads: nothing that this one decided since is kept or told."""

    default_reason = "NOT_LEADER"


class Opened(NamedTuple):
    """What a store gives to a scheduler that starts from it."""

    # Above every lease id that any earlier start can have given out, committed or not.
    lease_floor: int
    # Encoded batches, oldest first, each whole. To be read before the first append.
    batches: Iterator[bytes]
    # What a standby has read already; the batches come after it.
    warm: Compactor | None = None
    # And has brought to life as far as it can; then there are no batches.
    understudy: Understudy | None = None


class Store(Protocol):
    """A journal of batches of records."""

    # False: what is appended is lost with the process, so nobody needs to wait for it.
    durable: bool
    # Names what is remembered; to be asked once the batches were read. Another one when acknowledged records are gone.
    identity: int

    def open(self, wall_time: float) -> Opened:
        """Takes the store for this process alone; FailedPrecondition when another has it."""

    def append(self, batch: bytes, records: int) -> None:
        """Keeps a batch; when this returns it is as durable as the store can make it. Raises OSError otherwise."""

    def renew_identity(self) -> None:
        """After the batches were read: something acknowledged was not among them."""

    def check(self) -> None:
        """OSError when what is appended now would be lost; cheap, and asked for now and then."""

    def wants_compaction(self) -> bool:
        """Whether enough was appended since the last compaction."""

    def compact(self) -> Iterator[None]:
        """Compacts the journal in short steps, between which appends may go on."""

    def close(self) -> None:
        """Lets go of the store."""


class SharedStore(Store, Protocol):
    """A journal that several schedulers follow and one writes."""

    lease_seconds: float
    # Address of the scheduler that led at the last look; empty = nobody did.
    leader: str
    # Schedulers that stood by then, this one among them.
    standbys: int
    # When that one's lease ends, by the monotonic clock, if it is not renewed.
    lapses_at: float

    def stand_by(self, wall_time: float) -> Opened | None:
        """Reads on, and takes over when nobody leads; to be called again and again until then."""

    def trusted(self) -> bool:
        """Whether nobody else can lead yet. Does not block."""

    def keep(self, on_trust: Callable[[bool], None], on_deposed: Callable[[], None]) -> None:
        """Renews the lease from now on; the callbacks come from another thread."""

    def step_down(self) -> None:
        """Lets others lead; this store stands by again."""


def new_identity() -> int:
    """Never 0, and small enough for SQLite."""
    return secrets.randbits(62) + 1


def next_floor(last_lease: int, wall_time: float) -> int:
    """Starts from the time, so that it also grows when a store was lost, and never below the last start.

    Lease ids have 64 bits on the wire; a clock beyond the year 2106 counts no further.
    """
    return max(min(int(wall_time), LATEST_START), (last_lease // LEASES_PER_START) + 1) * LEASES_PER_START
