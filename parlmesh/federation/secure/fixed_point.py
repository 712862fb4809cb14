"""Updates as whole numbers that can be added modulo 2^32: the node weight first, then the weighted numbers.

A number x of an update of weight w becomes round(x · w / W · s), W being the largest weight and s as large as the sum
of all nodes allows. The weighted mean of n updates is then off by at most `error`: half a step per node, over the
weights. Where nodes add noise of their own, s makes its deviation a power of two of steps, so that it can be drawn
exactly. Sums beyond 31 bits would wrap around, which tells nobody more, but would spoil the number: there is room for
12 deviations of all nodes' noise, which a number leaves with a chance below 1e-31.
"""

import math
from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

WORD = np.dtype("<u4")
MOST_NODES = 200
LARGEST_WEIGHT = 1_000_000
LEAST_NOISE_MULTIPLIER = 1e-3
"""With less, noise of many nodes would have too few steps to be that of one exact sum."""

LEAST_NOISE_BITS = 8
"""What is said of the privacy of noise in parts needs so many steps."""

MOST_NOISE_BITS = 25
"""Squares of the largest candidates of a draw must fit into 64 bits."""

_HALF = (1 << 31) - 1
_DEVIATIONS = 12.0


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How the numbers of one round are written: alike on all of its nodes."""

    nodes: int
    """That are added up at most."""
    largest_value: float
    """Of an update."""
    largest_weight: int
    """Of a node; 1 = all weigh the same."""
    noise_deviation: float = 0.0
    """Of the noise that each node adds to its numbers; 0 = none."""

    @property
    def noise_bits(self) -> int:
        """The noise of a node has a deviation of 2^bits steps: as many as the sum of all nodes has room for."""
        values = self.nodes * self.largest_value / self.noise_deviation
        room = (_HALF - 0.5 * self.nodes) / (values + _DEVIATIONS * math.sqrt(self.nodes))
        found = min(math.floor(math.log2(room)), MOST_NOISE_BITS)
        if found < LEAST_NOISE_BITS:
            raise InvalidInput(
                f"noise of deviation {self.noise_deviation:g} has 2^{found} steps in a sum of {self.nodes} nodes;"
                f" it must have 2^{LEAST_NOISE_BITS} at least: fewer nodes or more noise",
                reason="VALUE",
            )
        return found

    @property
    def steps(self) -> float:
        """Steps per unit: so many that not even the sum of all nodes' largest numbers leaves 31 bits."""
        if self.noise_deviation:
            return float(2.0**self.noise_bits / self.noise_deviation)
        return (_HALF / self.nodes - 0.5) / self.largest_value

    def error(self, updates: int, weight: int) -> float:
        """Farthest that a number of the mean of so many updates, of so much weight together, is from the true mean."""
        return 0.5 * updates / self.steps * self.largest_weight / weight

    def room(self, clip_norm: float, size: int) -> float:
        """What an update of so many numbers may be long, so that rounding makes it no longer than `clip_norm`."""
        longer = 0.5 * math.sqrt(size) / self.steps
        if not longer < 0.5 * clip_norm:
            raise InvalidInput(
                f"fixed-point numbers of {self.nodes} nodes are too coarse for an update of {size} numbers clipped to"
                f" {clip_norm:g}; fewer nodes (selection.fraction) or less noise would make them finer",
                reason="VALUE",
            )
        return clip_norm - longer

    def words(self, vector: Array, weight: int, noise: Array | None = None) -> Array:
        """The vector as words, with noise in steps; InvalidInput when a number is too large or none."""
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
        whole = np.rint(scaled, out=scaled).astype(np.int32)
        found[1:] = whole.view(np.uint32)
        if noise is not None:
            found[1:] += noise.astype(np.uint32)
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
