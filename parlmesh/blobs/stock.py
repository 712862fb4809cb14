"""How much is kept in stock: the scheduler adds what is removed and bounds it, writers take without a word."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .spares import Spares

# Below, the pages cost less than finding a spare.
_LEAST_BYTES = 512 << 10
# Writers list them all.
_MOST_FILES = 256
# Of old ones in one call: to give memory back takes time.
_SWEPT_BYTES = 64 << 20


class Stock:
    """Bounded in bytes, files and time; the oldest go first."""

    def __init__(self, folder: Path, *, seconds: float, clock: Callable[[], float]) -> None:
        self._spares = Spares(folder)
        self._most_bytes = 0
        self._seconds = seconds
        self._clock = clock
        self.bytes = 0
        """At most: what writers have taken is noticed when the stock seems full."""
        self._files = 0

    def open(self, most_bytes: int) -> None:
        """Keeps so much from now on; before, and with 0, it removes whatever it is given."""
        self._most_bytes = most_bytes
        if most_bytes:
            self._spares.open()

    def close(self) -> None:
        self._spares.close()
        self.bytes = self._files = 0

    def add(self, file: Path, size: int) -> None:
        """The file of a blob that nobody needs any more. It is removed where it is of no use."""
        if size < _LEAST_BYTES:
            file.unlink(missing_ok=True)
            return
        if size > self._most_bytes:
            self._spares.remove(file)
            return
        with suppress(FileNotFoundError):
            self.bytes += self._spares.add(file, self._clock())
            self._files += 1
        self.shrink(self._most_bytes)

    def shrink(self, most_bytes: int) -> None:
        """Blobs need the room."""
        if self.bytes <= most_bytes and self._files <= _MOST_FILES:
            return
        spares = self._spares.all()
        self.bytes, self._files = sum(spare.size for spare in spares), len(spares)
        for spare in spares:
            if self.bytes <= most_bytes and self._files <= _MOST_FILES:
                return
            self._spares.discard(spare)
            self.bytes -= spare.size
            self._files -= 1

    def sweep(self) -> None:
        """Removes what nobody has taken for long."""
        oldest, swept = self._clock() - self._seconds, 0
        spares = self._spares.all()
        self.bytes, self._files = sum(spare.size for spare in spares), len(spares)
        for spare in spares:
            if spare.since >= oldest or swept >= _SWEPT_BYTES:
                return
            self._spares.discard(spare)
            swept += spare.size
            self.bytes -= spare.size
            self._files -= 1
