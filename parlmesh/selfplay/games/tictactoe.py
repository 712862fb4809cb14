"""Tic-tac-toe, in numpy."""

from typing import ClassVar

import numpy as np

from parlmesh.types import Array

from .line_games import LineGames


class TicTacToe(LineGames):
    """A move is a square, row by row from the top as in PettingZoo's tictactoe_v3."""

    rows: ClassVar[int] = 3
    columns: ClassVar[int] = 3
    line: ClassVar[int] = 3

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.choices = 9
        self._squares = np.uint64(1) << self._bits.reshape(-1)

    def legal(self, which: Array) -> Array:
        """Free squares, unless the game is won."""
        taken = self._stones[which, 0] | self._stones[which, 1]
        free = (taken[:, None] & self._squares) == 0
        found: Array = free & ~self._has_line(self._stones[which, 1])[:, None]
        return found

    def play(self, which: Array, moves: Array) -> Array:
        """Places a stone on a free square."""
        return self._place(which, self._squares[moves])

    def winning(self, which: Array) -> Array:
        """Squares that complete a line."""
        stones = self._stones[which, 0][:, None] | self._squares
        found: Array = self._has_line(stones) & self.legal(which)
        return found

    def threatened(self, which: Array) -> Array:
        """Squares on which the other side would complete a line."""
        stones = self._stones[which, 1][:, None] | self._squares
        found: Array = self._has_line(stones) & self.legal(which)
        return found
