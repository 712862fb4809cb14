"""Updates as whole numbers that can be added modulo 2^32: the node weight first, then the weighted numbers.

A number x of an update of weight w becomes round(x · w / W · s), W being the largest weight and s as large as the sum
of all nodes allows. The weighted mean of n updates is then off by at most `error`: half a step per node, over the
weights.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

WORD = np.dtype("<u4")
MOST_NODES = 200
LARGEST_WEIGHT = 1_000_000
_HALF = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How the numbers of one round are written: alike on all of its nodes."""

    nodes: int
    """That are added up at most."""
    largest_value: float
    """Of an update."""
    largest_weight: int
    """Of a node; 1 = all weigh the same."""

    @property
    def steps(self) -> float:
        """Steps per unit: so many that not even the sum of all nodes' largest numbers leaves 31 bits."""
        return (_HALF / self.nodes - 0.5) / self.largest_value

    def error(self, updates: int, weight: int) -> float:
        """Farthest that a number of the mean of so many updates, of so much weight together, is from the true mean."""
        return 0.5 * updates / self.steps * self.largest_weight / weight

    def longer(self, size: int) -> float:
        """By how much rounding can lengthen an update of so many numbers."""
        return 0.5 * float(np.sqrt(size)) / self.steps

    def words(self, vector: Array, weight: int) -> Array:
        """The vector as words; InvalidInput when a number is too large or none."""
        largest = float(np.abs(vector).max(initial=0.0))
        if not largest <= self.largest_value:
            raise InvalidInput(
                f"the largest number of the update is {largest:g}; the limit is {self.largest_value:g}"
                " (secure.largest_value)",
                reason="VALUE",
            )
        counted = min(max(weight, 1), self.largest_weight)
        found = np.empty(len(vector) + 1, WORD)
        found[0] = counted
        scaled = np.multiply(vector, counted / self.largest_weight * self.steps, dtype=np.float64)
        found[1:] = np.rint(scaled, out=scaled).astype(np.int32).view(np.uint32)
        return found

    def weight(self, total: Array, updates: int) -> int:
        """Of all updates together, from the first word of their sum; InvalidInput when it cannot be one."""
        found = int(total[0])
        if not updates <= found <= updates * self.largest_weight:
            raise InvalidInput(
                f"the weights of {updates} updates add up to {found}, not to {updates} to"
                f" {updates * self.largest_weight}: the masks do not cancel",
                reason="MASKS",
            )
        return found

    def mean(self, total: Array, weight: int) -> Array:
        """Of summed words without the first, float64."""
        return total.view(np.int32) * (self.largest_weight / (self.steps * weight))
