"""Compaction for every store with rows: a new snapshot beside the old one, one switch, then the deletions."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from .. import failpoints
from ..journal.compaction import Compactor
from ..journal.records import seal

SNAPSHOT_BATCH_BYTES = 1 << 20
# An older store does not say how many.
UNKNOWN_PARTS = -1


class Place(NamedTuple):
    """Which snapshot is valid, how many parts it has, and up to which row it covers the journal."""

    generation: int = 0
    covered: int = 0
    parts: int = UNKNOWN_PARTS


class Shelf(Protocol):
    """Rows and parts of snapshots. Each call takes effect whole or not at all."""

    def snapshot(self, place: Place) -> Iterator[bytes]: ...

    def journal(self, first: int, last: int | None = None) -> Iterator[bytes]: ...

    def put_part(self, generation: int, position: int, sealed: bytes) -> None: ...

    def set_place(self, place: Place) -> None: ...

    def delete_old_rows(self, place: Place) -> bool: ...

    def delete_old_parts(self, place: Place) -> bool: ...


def shorten(
    shelf: Shelf, place: Place, covered: int, switched: Callable[[Place, Compactor, int], None]
) -> Iterator[None]:
    """Compacts in short steps. `switched` is called with the snapshot that is valid from then on, and its bytes."""
    _hit(failpoints.COMPACT_BEGIN)
    yield from _delete_old(shelf, place)
    generation, compactor = place.generation + 1, Compactor()
    for batches in (shelf.snapshot(place), shelf.journal(place.covered + 1, covered)):
        for batch in batches:
            compactor.read(batch)
            _hit(failpoints.COMPACT_READ)
            yield
    parts = size = 0
    for batch in compactor.write(SNAPSHOT_BATCH_BYTES):
        shelf.put_part(generation, parts, seal(batch))
        parts += 1
        size += len(batch)
        _hit(failpoints.COMPACT_WRITE)
        yield
    _hit(failpoints.COMPACT_BEFORE_SWITCH)
    place = Place(generation, covered, parts)
    shelf.set_place(place)
    switched(place, compactor, size)
    _hit(failpoints.COMPACT_AFTER_SWITCH)
    yield
    yield from _delete_old(shelf, place)


def _delete_old(shelf: Shelf, place: Place) -> Iterator[None]:
    """Deletes the rows that the valid snapshot has replaced, and those left by a failed compaction."""
    for delete in (shelf.delete_old_rows, shelf.delete_old_parts):
        while delete(place):
            _hit(failpoints.COMPACT_DELETE)
            yield


def _hit(name: str) -> None:
    if failpoints.armed:
        failpoints.hit(name)
