"""Updates as integers that can be added modulo 2^32: the node weight first, then the weighted values.

A value x of an update with weight w becomes round(x · w / W · s), where W is the largest weight and s is as large as
the sum over all nodes allows. The weighted mean of n updates is then off by at most `error`: half a step per node, over
the weights. If nodes add noise, s makes its deviation a power of two of steps, so that it can be drawn exactly. Sums
beyond 31 bits would wrap around, which reveals nothing but spoils the value: there is room for 12 deviations of all
nodes' noise, which a value exceeds with a probability below 1e-31.
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
"""With a smaller value, many nodes' noise would have too few steps for an exact sum."""

LEAST_NOISE_BITS = 8
"""The privacy analysis of noise in parts needs at least 2^this steps."""

MOST_NOISE_BITS = 25
"""Keeps the squares of the largest candidates of a draw within 64 bits."""

_HALF = (1 << 31) - 1
_DEVIATIONS = 12.0


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """How the values of one round are encoded; the same on all its nodes."""

    nodes: int
    """Most nodes in the sum."""
    largest_value: float
    """Largest absolute value in an update."""
    largest_weight: int
    """Largest weight of a node; 1 = equal weights."""
    noise_deviation: float = 0.0
    """Standard deviation of the noise that each node adds to its values; 0 = none."""

    @property
    def noise_bits(self) -> int:
        """A node's noise has a deviation of 2^bits steps: as many as the sum over all nodes has room for."""
        values = self.nodes * self.largest_value / self.noise_deviation
        room = (_HALF - 0.5 * self.nodes) / (values + _DEVIATIONS * math.sqrt(self.nodes))
        found = min(math.floor(math.log2(room)), MOST_NOISE_BITS)
        if found < LEAST_NOISE_BITS:
            raise InvalidInput(
                f"noise of deviation {self.noise_deviation:g} has 2^{found} steps in a sum of {self.nodes} nodes;"
                f" it must have at least 2^{LEAST_NOISE_BITS}: use fewer nodes or more noise",
                reason="VALUE",
            )
        return found

    @property
    def steps(self) -> float:
        """Steps per unit: as many as keep the sum of all nodes' largest values within 31 bits."""
        if self.noise_deviation:
            return float(2.0**self.noise_bits / self.noise_deviation)
        return (_HALF / self.nodes - 0.5) / self.largest_value

    def error(self, updates: int, weight: int) -> float:
        """Largest error of a value in the mean of `updates` updates with the total weight `weight`."""
        return 0.5 * updates / self.steps * self.largest_weight / weight

    def room(self, clip_norm: float, size: int) -> float:
        """Largest norm of an update of `size` values for which rounding cannot exceed `clip_norm`."""
        longer = 0.5 * math.sqrt(size) / self.steps
        if not longer < 0.5 * clip_norm:
            raise InvalidInput(
                f"fixed-point values of {self.nodes} nodes are too coarse for an update of {size} values clipped to"
                f" {clip_norm:g}; use fewer nodes (selection.fraction) or less noise",
                reason="VALUE",
            )
        return clip_norm - longer

    def words(self, vector: Array, weight: int, noise: Array | None = None) -> Array:
        """The vector as words, with noise in steps; raises InvalidInput when a value is too large or not finite."""
        largest = float(np.abs(vector).max(initial=0.0))
        if not largest <= self.largest_value:
            raise InvalidInput(
                f"the largest value of the update is {largest:g}; the limit is {self.largest_value:g}"
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
        """The total weight of all updates, from the first word of their sum; raises InvalidInput if impossible."""
        found = int(total[0])
        if not updates <= found <= updates * self.largest_weight:
            raise InvalidInput(
                f"the weights of {updates} updates add up to {found}, not to {updates} to"
                f" {updates * self.largest_weight}: the masks do not cancel",
                reason="MASKS",
            )
        return found

    def mean(self, total: Array, weight: int) -> Array:
        """The weighted mean from summed words without the first, float64."""
        return total.view(np.int32) * (self.largest_weight / (self.steps * weight))
