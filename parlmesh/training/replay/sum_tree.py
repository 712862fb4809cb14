"""A binary tree of sums over numpy arrays: sets and finds batches of leaves level by level, not row by row."""

import numpy as np

from parlmesh.types import Array


class SumTree:
    """Node i has the children 2i and 2i + 1; the root is node 1, the leaves are the last half."""

    def __init__(self, capacity: int) -> None:
        self._first_leaf = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._first_leaf, np.float64)
        self.leaves = self._sums[self._first_leaf : self._first_leaf + capacity]

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._sums[1])

    def set(self, indices: Array, values: Array) -> None:
        """Sets leaves; if an index occurs twice, the last value counts."""
        if not len(indices):
            return
        self.leaves[indices] = values
        nodes = indices + self._first_leaf
        while nodes[0] > 1:
            nodes = nodes >> 1
            # Summed again instead of adjusted by a difference, so rounding errors never add up.
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, sums: Array) -> Array:
        """For each value in [0, total), the leaf whose part of the whole it falls into."""
        remaining = sums.copy()
        nodes = np.ones(len(sums), np.int64)
        while nodes[0] < self._first_leaf:
            nodes *= 2
            left = self._sums[nodes]
            # Rounding may leave a little more than there is on the right; a branch without weight is never taken.
            right = (remaining >= left) & (self._sums[nodes + 1] > 0.0)
            remaining -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self._first_leaf
