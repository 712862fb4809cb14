"""The interface of all games: two players, turn-based, zero-sum, many stepped together.

Games do not know which side learns: verdicts are for the side that moved, observations for the requested side.
`environment` turns them into rewards.
"""

from enum import IntEnum
from typing import Any, Protocol, Self

import numpy as np

from parlmesh.types import Array


class Verdict(IntEnum):
    """The result of a move, for the side that made it."""

    GOES_ON = 0
    WON = 1
    LOST = 2
    DRAWN = 3
    LIMIT = 4
    """The move limit: neither side has won, although the rules would let the game continue."""


# The other side's verdict, by verdict.
OTHER_SIDE: Array = np.array([Verdict.GOES_ON, Verdict.LOST, Verdict.WON, Verdict.DRAWN, Verdict.LIMIT], np.int8)
# The reward, by verdict.
WORTH: Array = np.array([0.0, 1.0, -1.0, 0.0, 0.0], np.float32)


class Games(Protocol):
    """`count` games side by side. `which` holds indices of games [N]; results have the same order."""

    count: int
    shape: tuple[int, int, int]
    """Planes, rows and columns of an observation, which is from its side's point of view."""

    @property
    def dtype(self) -> str:
        """Type of an observation: uint8 or float32."""

    choices: int
    """Number of numbered moves; the mask marks the legal ones."""

    def start(self, which: Array, rng: np.random.Generator) -> None:
        """Starts new games. `rng` is for games with chance."""

    def planes(self, which: Array, *, waiting: bool = False) -> Array:
        """Observations [N, *shape] of the side to move, or with `waiting` of the other side."""

    def legal(self, which: Array) -> Array:
        """Legal moves of the side to move, bool [N, choices]; none once a game has ended."""

    def play(self, which: Array, moves: Array) -> Array:
        """Makes legal moves [N] and returns the movers' verdicts, int8 [N]. The other side is to move afterwards."""

    def material(self, which: Array) -> Array:
        """Material advantage [N] of the side to move, from −1 to 1; 0 if pieces have no value."""

    def plies(self, which: Array) -> Array:
        """Moves made so far [N]."""

    def room(self, count: int) -> Self:
        """Storage for `count` games with the same rules, to be filled by `copy_from`."""

    def copy_from(self, which: Array, source: Any, rows: Array) -> None:
        """Copies games `rows` of `source` into games `which`; `source` is this object or shares its rules."""


def winning_moves(games: Games, which: Array) -> Array:
    """Legal moves that win immediately, bool [N, choices], from the game's `winning`; none for games without it."""
    own = getattr(games, "winning", None)
    if own is None:
        return np.zeros((len(which), games.choices), np.bool_)
    found: Array = own(which)
    return found
