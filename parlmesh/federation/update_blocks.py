"""The updates of one round in the form that rules read: rows sorted by node id, block by block.

A rule sees only one block at a time, so its memory grows with neither nodes nor parameters.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from parlmesh.types import Array

# Larger blocks do not fit the cache; smaller ones cost more in calls than they save.
_BLOCK_BYTES = 4 << 20
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 << 10, 1 << 18


class Updates(Protocol):
    """`count` updates of `size` values each."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    def block(self, start: int, stop: int) -> Array:
        """float32 [count, stop - start]; row k always belongs to the same node."""
        ...


class MemoryUpdates:
    """Updates in memory, sorted by node id, so that the order of arrival does not matter."""

    def __init__(self, by_node: Mapping[str, Array]) -> None:
        self._rows = [np.asarray(by_node[node], np.float32).reshape(-1) for node in sorted(by_node)]

    @property
    def count(self) -> int:
        """Number of updates."""
        return len(self._rows)

    @property
    def size(self) -> int:
        """Values per update."""
        return len(self._rows[0])

    def block(self, start: int, stop: int) -> Array:
        """A copy of these columns."""
        return np.stack([row[start:stop] for row in self._rows])


def block_columns(updates: Updates) -> Iterator[tuple[int, int]]:
    """(start, stop) over all columns; the more rows, the fewer columns at a time."""
    width = min(max(_BLOCK_BYTES // (4 * max(1, updates.count)), _SMALLEST_BLOCK), _LARGEST_BLOCK)
    for start in range(0, updates.size, width):
        yield start, min(start + width, updates.size)


def blocks(updates: Updates) -> Iterator[tuple[int, int, Array]]:
    """(start, stop, block) over all columns."""
    for start, stop in block_columns(updates):
        yield start, stop, updates.block(start, stop)


def gram(updates: Updates) -> Array:
    """Inner products [n, n] of the updates in float64, which give distances and norms."""
    products = np.zeros((updates.count, updates.count))
    for _, _, block in blocks(updates):
        wide = block.astype(np.float64)
        products += wide @ wide.T
    return products


def squared_distances(products: Array) -> Array:
    """Squared distances [n, n] between updates, from their inner products."""
    norms = np.diag(products)
    distances = norms[:, None] + norms[None, :] - 2.0 * products
    np.fill_diagonal(distances, 0.0)
    return np.asarray(np.maximum(distances, 0.0))
