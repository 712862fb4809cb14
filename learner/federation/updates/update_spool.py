"""Updates on disk while their round is open: one file with a slot for each, written by chunks and read by blocks."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parlmesh.digests import fast_hasher
from parlmesh.types import Array

_DIGEST_STEP = 1 << 18


class Spool:
    """Slots of `size` float32 numbers. Never mapped, so that their pages do not count as this process's memory."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._bytes = 4 * size
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, slot: int, offset: int, data: bytes | memoryview) -> None:
        """Writes bytes at an offset in a slot."""
        start = slot * self._bytes + offset
        while data:
            written = os.pwrite(self._descriptor, data, start)
            data, start = memoryview(data)[written:], start + written

    def read_into(self, slot: int, start: int, numbers: Array) -> None:
        """Reads little-endian float32 numbers from a slot; zeros where nothing was written."""
        wanted = memoryview(numbers).cast("B")  # type: ignore[arg-type]
        place, done = slot * self._bytes + 4 * start, 0
        while done < len(wanted):
            read = os.preadv(self._descriptor, [wanted[done:]], place + done)
            if not read:
                numbers.view(np.uint8)[done:] = 0
                return
            done += read

    def digest(self, slot: int) -> str:
        """XXH3-128 of a slot."""
        found, numbers = fast_hasher(), np.empty(min(self.size, _DIGEST_STEP), "<f4")
        for start in range(0, self.size, _DIGEST_STEP):
            part = numbers[: min(_DIGEST_STEP, self.size - start)]
            self.read_into(slot, start, part)
            found.update(part.data)
        return found.hexdigest()

    def shrink(self, places: int) -> None:
        """Frees the space beyond this many slots."""
        if os.fstat(self._descriptor).st_size > places * self._bytes:
            os.ftruncate(self._descriptor, places * self._bytes)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


class SpooledUpdates:
    """The updates of a round, as the rules read them."""

    def __init__(self, spool: Spool, slots: Sequence[int]) -> None:
        self._spool = spool
        self._slots = tuple(slots)

    @property
    def count(self) -> int:
        """Number of updates."""
        return len(self._slots)

    @property
    def size(self) -> int:
        """Numbers in each update."""
        return self._spool.size

    def block(self, start: int, stop: int) -> Array:
        """[count, stop - start]"""
        found = np.empty((len(self._slots), stop - start), "<f4")
        for row, slot in zip(found, self._slots, strict=True):
            self._spool.read_into(slot, start, row)
        return found
