"""Columns of fixed capacity, allocated once; when they are full, the oldest rows are removed first."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from parlmesh.errors import ConfigError
from parlmesh.types import Array

Columns = Mapping[str, tuple[str, tuple[int, ...]]]
"""The dtype and the shape of one row, by the column's name."""


class Overwritten(NamedTuple):
    """The change made by one `add`."""

    slots: Array
    rows: dict[str, Array]
    inserted: int


def row_bytes(columns: Columns) -> int:
    """Bytes of all columns together."""
    return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in columns.values())


class Ring:
    """Row i, counted from the first ever inserted, lies in slot i modulo the capacity."""

    def __init__(self, columns: Columns, capacity: int) -> None:
        self.capacity = capacity
        # Rows ever inserted, including removed ones.
        self.inserted = 0
        # How many of these, from the first, are no longer to be drawn.
        self.forgotten = 0
        self._columns = {name: np.empty((capacity, *shape), dtype) for name, (dtype, shape) in columns.items()}

    def __len__(self) -> int:
        return self.inserted - self.first

    @property
    def first(self) -> int:
        """The number of the oldest row."""
        return max(self.forgotten, self.inserted - self.capacity)

    @property
    def filled(self) -> int:
        """Slots that hold something, forgotten rows included."""
        return min(self.inserted, self.capacity)

    def slots_of(self, places: Array) -> Array:
        """Slots of rows, by places from 0 up to the number of rows."""
        return (self.first + places) % self.capacity if self.forgotten else places

    def add(self, rows: Mapping[str, Array]) -> Overwritten:
        """Adds rows, as if one by one, in order."""
        count = len(next(iter(rows.values())))
        # Only the end of a batch larger than the ring would survive.
        kept = min(count, self.capacity)
        slots = np.arange(self.inserted + count - kept, self.inserted + count) % self.capacity
        overwritten = Overwritten(slots, self.rows(slots), self.inserted)
        for name, column in self._columns.items():
            column[slots] = rows[name][count - kept :]
        self.inserted += count
        return overwritten

    def undo(self, overwritten: Overwritten) -> None:
        """Undoes the last `add`."""
        for name, column in self._columns.items():
            column[overwritten.slots] = overwritten.rows[name]
        self.inserted = overwritten.inserted

    def rows(self, slots: Array) -> dict[str, Array]:
        """Copies of the rows in these slots."""
        return {name: column[slots] for name, column in self._columns.items()}

    def tensors(self) -> dict[str, Array]:
        """The filled part and the count."""
        filled = {f"replay.{name}": column[: self.filled].copy() for name, column in self._columns.items()}
        counts = np.array([self.inserted, self.forgotten], np.int64)
        return {**filled, "replay.inserted": counts[:1], **({"replay.forgotten": counts[1:]} if self.forgotten else {})}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`, for a ring of the same capacity."""
        inserted = int(tensors["replay.inserted"][0])
        saved = len(tensors[f"replay.{next(iter(self._columns))}"])
        if saved != min(inserted, self.capacity):
            raise ConfigError(f"the replay was saved with {saved} steps; this one has room for {self.capacity}")
        self.inserted = inserted
        self.forgotten = int(tensors["replay.forgotten"][0]) if "replay.forgotten" in tensors else 0
        for name, column in self._columns.items():
            column[:saved] = tensors[f"replay.{name}"]
