"""Bounds the stock of spares: the scheduler adds removed blobs; writers take spares without telling it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .spares import Spares

# For smaller files, new pages cost less than finding a spare.
_LEAST_BYTES = 512 << 10
# Writers list all of them.
_MOST_FILES = 256
# Bytes to sweep per call: freeing memory takes time.
_SWEPT_BYTES = 64 << 20


class Stock:
    """Spares, bounded in bytes, files and time; the oldest are removed first."""

    def __init__(self, folder: Path, *, seconds: float, clock: Callable[[], float]) -> None:
        self._spares = Spares(folder)
        self._most_bytes = 0
        self._seconds = seconds
        self._clock = clock
        self.bytes = 0
        """An upper bound: what writers have taken is noticed only when the stock seems full."""
        self._files = 0

    def open(self, most_bytes: int) -> None:
        """Keeps up to this many bytes from now on; before this call, and with 0, it removes every file it is given."""
        self._most_bytes = most_bytes
        if most_bytes:
            self._spares.open()

    def close(self) -> None:
        self._spares.close()
        self.bytes = self._files = 0

    def add(self, file: Path, size: int) -> None:
        """Takes the file of a blob that is no longer needed; removes it if it is of no use as a spare."""
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
        """Removes spares beyond the limits, because blobs need the room."""
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
        """Removes spares that have not been used for a long time."""
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
