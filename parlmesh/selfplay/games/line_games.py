"""Games on a small board where a line wins: both sides are bit boards in one array, and shifts find lines."""

import copy
from typing import ClassVar, Self

import numpy as np

from parlmesh.types import Array

from .game import Verdict


class LineGames:
    """`count` boards of `rows` x `columns`, bit column · (rows + 1) + row; the spare row prevents wrapped lines."""

    dtype: ClassVar[str] = "uint8"
    rows: ClassVar[int]
    columns: ClassVar[int]
    line: ClassVar[int]

    def __init__(self, count: int) -> None:
        self.count = count
        self.shape = (2, self.rows, self.columns)
        # Per game: the side to move, then the other.
        self._stones = np.zeros((count, 2), np.uint64)
        self._made = np.zeros(count, np.int64)
        column, row = np.meshgrid(np.arange(self.columns), np.arange(self.rows), indexing="xy")
        # Row 0 of an observation is the top of the board.
        self._bits = (column * (self.rows + 1) + (self.rows - 1 - row)).astype(np.uint64)
        self._full = np.uint64(sum(1 << int(bit) for bit in self._bits.reshape(-1)))

    def start(self, which: Array, rng: np.random.Generator) -> None:
        """Empty boards."""
        self._stones[which] = 0
        self._made[which] = 0

    def planes(self, which: Array, *, waiting: bool = False) -> Array:
        """Own stones, then the other side's."""
        stones = self._stones[which]
        if waiting:
            stones = stones[:, ::-1]
        found: Array = ((stones[:, :, None, None] >> self._bits) & np.uint64(1)).astype(np.uint8)
        return found

    def material(self, which: Array) -> Array:
        """Always 0: stones have no value."""
        return np.zeros(len(which), np.float32)

    def plies(self, which: Array) -> Array:
        """Stones on the board."""
        return self._made[which]

    def room(self, count: int) -> Self:
        """Empty boards."""
        found = copy.copy(self)
        found.count = count
        found._stones = np.zeros((count, 2), np.uint64)
        found._made = np.zeros(count, np.int64)
        return found

    def copy_from(self, which: Array, source: Self, rows: Array) -> None:
        """Copies the bit boards and the move counts."""
        self._stones[which] = source._stones[rows]
        self._made[which] = source._made[rows]

    def _place(self, which: Array, bits: Array) -> Array:
        own = self._stones[which, 0] | bits
        other = self._stones[which, 1]
        self._stones[which, 0], self._stones[which, 1] = other, own
        self._made[which] += 1
        verdicts = np.where((own | other) == self._full, Verdict.DRAWN, Verdict.GOES_ON)
        return np.where(self._has_line(own), Verdict.WON, verdicts).astype(np.int8)

    def _has_line(self, stones: Array) -> Array:
        height = self.rows + 1
        found = np.zeros(stones.shape, np.bool_)
        for step in (1, height - 1, height, height + 1):
            line = stones
            for _ in range(self.line - 1):
                line = stones & (line >> np.uint64(step))
            found |= line != 0
        return found
