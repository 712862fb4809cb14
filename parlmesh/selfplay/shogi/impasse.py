"""Declaration of a win in an impasse: the 27-point and the 24-point rule, which rsshogi lacks."""

from typing import Literal, TypeAlias

import numpy as np

from parlmesh.types import Array

from .board_planes import WHITE

Rule: TypeAlias = Literal["none", "24", "27"]
_KING = 8
# Points by piece type: rooks and bishops, promoted or not, five; the king none; all others one.
_POINTS: Array = np.array([0, 1, 1, 1, 1, 5, 5, 1, 0, 1, 1, 1, 1, 5, 5], np.int64)
_HAND_POINTS: Array = np.array([1, 1, 1, 1, 1, 5, 5], np.int64)
_LEAST_PIECES = 10


def points_of(boards: Array, hands: Array, colours: Array) -> tuple[Array, Array]:
    """Points [N] of the colours' pieces in the enemy camp and in hand, and whether the king and ten more are there."""
    seen = np.where((colours == 1)[:, None], boards[:, ::-1], boards)[:, :27].astype(np.int64)
    own = (seen > 0) & ((seen >= WHITE) == (colours == 1)[:, None])
    kinds = np.where(own, seen % WHITE, 0)
    king = (kinds == _KING).any(axis=1)
    others = own.sum(axis=1) - king
    held = hands[np.arange(len(boards)), colours].astype(np.int64) @ _HAND_POINTS
    return _POINTS[kinds].sum(axis=1) + held, king & (others >= _LEAST_PIECES)


def declared(rule: Rule, boards: Array, hands: Array, colours: Array) -> tuple[Array, Array]:
    """Whether the colours, which are to move and not in check, win or draw by declaration, each [N].

    27-point rule: black wins with 28 points, white with 27. 24-point rule: 31 points win, 24 draw.
    """
    points, entered = points_of(boards, hands, colours)
    if rule == "27":
        wins = entered & (points >= np.where(colours == 0, 28, 27))
        return wins, np.zeros_like(wins)
    wins = entered & (points >= 31)
    return wins, entered & (points >= 24) & ~wins
