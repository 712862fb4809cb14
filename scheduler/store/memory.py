"""A journal in this process's memory: for tests, simulations and schedulers that may forget."""

from collections.abc import Iterator

from ..journal.compaction import Compactor
from .protocol import Opened, new_identity, next_floor

BATCH_BYTES = 1 << 20


class MemoryStore:
    """Keeps the records as long as the object exists; opening it again is a restart."""

    durable = False

    def __init__(self, compact_records: int = 200_000) -> None:
        self._compact_records = compact_records
        self._batches: list[bytes] = []
        self._new_records = 0
        self._lease_floor = 0
        self.identity = new_identity()

    def open(self, wall_time: float) -> Opened:
        self._lease_floor = next_floor(self._lease_floor, wall_time)
        return Opened(self._lease_floor, iter(list(self._batches)))

    def append(self, batch: bytes, records: int) -> None:
        self._batches.append(batch)
        self._new_records += records

    def renew_identity(self) -> None:
        self.identity = new_identity()

    def check(self) -> None:
        """Nothing can happen to it."""

    def wants_compaction(self) -> bool:
        return self._new_records >= self._compact_records

    def compact(self) -> Iterator[None]:
        compactor, covered = Compactor(), len(self._batches)
        self._new_records = 0
        for batch in self._batches[:covered]:
            compactor.read(batch)
        yield
        self._batches[:covered] = compactor.write(BATCH_BYTES)

    def close(self) -> None:
        """Releases nothing; the next `open` finds everything."""
