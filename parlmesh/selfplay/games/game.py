"""Two-player, turn-based, zero-sum games, many stepped together. Every game of the package has this form.

Nothing here knows who learns: verdicts are those of the side that moved, observations those of the side that is asked
for. Who turns them into rewards is `environment`.
"""

from enum import IntEnum
from typing import Any, Protocol, Self

import numpy as np

from parlmesh.types import Array


class Verdict(IntEnum):
    """What a move led to, for the side that made it."""

    GOES_ON = 0
    WON = 1
    LOST = 2
    DRAWN = 3
    LIMIT = 4
    """The move limit: nobody has won, and by the rules the game could go on."""


# By verdict: what the other side says of the same move.
OTHER_SIDE: Array = np.array([Verdict.GOES_ON, Verdict.LOST, Verdict.WON, Verdict.DRAWN, Verdict.LIMIT], np.int8)
# By verdict: what it is worth.
WORTH: Array = np.array([0.0, 1.0, -1.0, 0.0, 0.0], np.float32)


class Games(Protocol):
    """`count` games side by side. `which` are indices of games [N]; what is asked of them comes in their order."""

    count: int
    shape: tuple[int, int, int]
    """Planes, rows and columns of an observation, which is seen from the side that it is of."""

    @property
    def dtype(self) -> str:
        """Of an observation: uint8 or float32."""

    choices: int
    """Moves that have a number; the mask says which are legal."""

    def start(self, which: Array, rng: np.random.Generator) -> None:
        """New games. `rng` decides what a game itself leaves to chance."""

    def planes(self, which: Array, *, waiting: bool = False) -> Array:
        """[N, *shape] as the side to move sees it; `waiting` = as the other one does."""

    def legal(self, which: Array) -> Array:
        """Legal moves of the side to move, bool [N, choices]; none once a game is over."""

    def play(self, which: Array, moves: Array) -> Array:
        """Makes legal moves [N]; verdicts int8 [N] of those who made them. The other side is to move then."""

    def material(self, which: Array) -> Array:
        """[N] what the side to move has more than the other, between −1 and 1; 0 where pieces have no worth."""

    def plies(self, which: Array) -> Array:
        """Moves made so far [N]."""

    def room(self, count: int) -> Self:
        """Place for `count` games by the same rules, with nothing in it until it is copied there."""

    def copy_from(self, which: Array, source: Any, rows: Array) -> None:
        """Makes games `which` of these equal to games `rows` of `source`, which is these or a room of theirs."""


def winning_moves(games: Games, which: Array) -> Array:
    """bool [N, choices]: legal moves that win at once. Games that know a quicker way have `winning` of their own."""
    own = getattr(games, "winning", None)
    if own is None:
        return np.zeros((len(which), games.choices), np.bool_)
    found: Array = own(which)
    return found
