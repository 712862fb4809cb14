"""Detects repeated positions. rsshogi only looks back a limited number of plies, and reports a position as better or
worse before it reports it as repeated, so it would miss a fourth occurrence after a long time."""

from typing import Self

from ..games.game import Verdict

_TIMES = 4


class Past:
    """The history of one game: how often each position occurred, and each side's current run of checks."""

    __slots__ = ("_checks", "_plies", "_seen")

    def __init__(self, position: int) -> None:
        self._seen = {position: (1, 0)}
        self._plies = 0
        # Consecutive checking moves of each side, by the parity of its plies.
        self._checks = [0, 0]

    def add(self, position: int, *, check: bool) -> Verdict:
        """The verdict of a move, for the side that made it; perpetual check loses."""
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
        """A copy for a search that continues from here."""
        found = object.__new__(type(self))
        found._seen, found._plies, found._checks = self._seen.copy(), self._plies, self._checks.copy()
        return found
