"""Positions that come back. rsshogi looks only so many plies back, and calls a position better or worse before it calls
it repeated, so that a fourth occurrence after a long way would go unseen."""

from typing import Self

from ..games.game import Verdict

_TIMES = 4


class Past:
    """Of one game: how often each position was there, and for how long either side has given nothing but checks."""

    __slots__ = ("_checks", "_plies", "_seen")

    def __init__(self, position: int) -> None:
        self._seen = {position: (1, 0)}
        self._plies = 0
        # By whose ply it was, odd or even: own moves in a row that gave check.
        self._checks = [0, 0]

    def add(self, position: int, *, check: bool) -> Verdict:
        """What a move led to, for the side that made it: who checked for ever has lost."""
        self._plies = plies = self._plies + 1
        side = plies % 2
        self._checks[side] = self._checks[side] + 1 if check else 0
        times, first = self._seen.get(position, (0, plies))
        self._seen[position] = (times + 1, first)
        if times + 1 < _TIMES:
            return Verdict.GOES_ON
        moves = (plies - first) // 2
        if self._checks[side] >= moves:
            return Verdict.LOST
        return Verdict.WON if self._checks[1 - side] >= moves else Verdict.DRAWN

    def copy(self) -> Self:
        """For a search, which goes on from here."""
        found = object.__new__(type(self))
        found._seen, found._plies, found._checks = self._seen.copy(), self._plies, self._checks.copy()
        return found
