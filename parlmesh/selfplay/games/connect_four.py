"""Connect four, in numpy: seven columns, six rows, four in a line."""

from typing import ClassVar

import numpy as np

from parlmesh.types import Array

from .line_games import LineGames

_ONE = np.uint64(1)


class ConnectFour(LineGames):
    """A move is a column, as in PettingZoo's connect_four_v3; observations are the same, with the planes first."""

    rows: ClassVar[int] = 6
    columns: ClassVar[int] = 7
    line: ClassVar[int] = 4

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.choices = self.columns
        starts = np.arange(self.columns, dtype=np.uint64) * np.uint64(self.rows + 1)
        self._bottom = _ONE << starts
        self._top = _ONE << (starts + np.uint64(self.rows - 1))

    def legal(self, which: Array) -> Array:
        """Columns that are not full, unless the game is won."""
        taken = self._stones[which, 0] | self._stones[which, 1]
        free = (taken[:, None] & self._top) == 0
        found: Array = free & ~self._has_line(self._stones[which, 1])[:, None]
        return found

    def play(self, which: Array, moves: Array) -> Array:
        """A stone falls to the lowest free row: adding the bottom bit carries it there."""
        return self._place(which, self._landing(which)[np.arange(len(which)), moves])

    def winning(self, which: Array) -> Array:
        """Columns that complete a line."""
        stones = self._stones[which, 0][:, None] | self._landing(which)
        found: Array = self._has_line(stones) & self.legal(which)
        return found

    def threatened(self, which: Array) -> Array:
        """Columns in which the other side would complete a line."""
        stones = self._stones[which, 1][:, None] | self._landing(which)
        found: Array = self._has_line(stones) & self.legal(which)
        return found

    def _landing(self, which: Array) -> Array:
        """The bit [N, columns] where a stone in each column would land; above the board if the column is full."""
        taken = self._stones[which, 0] | self._stones[which, 1]
        column = (self._top << _ONE) - self._bottom
        found: Array = ((taken[:, None] & column) + self._bottom) & ~taken[:, None]
        return found
