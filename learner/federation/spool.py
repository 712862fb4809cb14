"""Updates on disk while their round is open: one file, a place for each, written as chunks come and read by blocks."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parlmesh.types import Array


class Spool:
    """Places of `size` float32 numbers. Never mapped into memory: the page cache is not this process's to fill."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._bytes = 4 * size
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, slot: int, offset: int, data: bytes | memoryview) -> None:
        """Puts bytes at an offset of a place."""
        start = slot * self._bytes + offset
        while data:
            written = os.pwrite(self._descriptor, data, start)
            data, start = memoryview(data)[written:], start + written

    def read(self, slot: int, start: int, stop: int) -> Array:
        """Numbers of a place; zeros where nothing was written."""
        wanted = 4 * (stop - start)
        data = os.pread(self._descriptor, wanted, slot * self._bytes + 4 * start)
        return np.frombuffer(data.ljust(wanted, b"\0"), "<f4")

    def digest(self, slot: int) -> str:
        """SHA-256 of a place."""
        found, step = hashlib.sha256(), 1 << 18
        for start in range(0, self.size, step):
            found.update(self.read(slot, start, min(start + step, self.size)).data)
        return found.hexdigest()

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)


class SpooledUpdates:
    """The places of a round's updates, as the rules read them."""

    def __init__(self, spool: Spool, slots: Sequence[int]) -> None:
        self._spool = spool
        self._slots = tuple(slots)

    @property
    def count(self) -> int:
        """Updates."""
        return len(self._slots)

    @property
    def size(self) -> int:
        """Numbers in one."""
        return self._spool.size

    def block(self, start: int, stop: int) -> Array:
        """[count, stop - start]"""
        found = np.empty((len(self._slots), stop - start), np.float32)
        for row, slot in enumerate(self._slots):
            found[row] = self._spool.read(slot, start, stop)
        return found
