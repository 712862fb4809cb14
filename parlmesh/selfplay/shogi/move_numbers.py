"""Numbers moves, in two forms, both from the mover's view.

`flat` has 13,527 = 81 · 80 · 2 + 81 · 7: from, to and promotion of every board move, then drops. `spatial` has 11,259 =
81 · 139: for every square 64 slides, the same with promotion, four knight moves and seven drops, so that a network's
head can be a convolution. Squares are numbered row by row from the upper left, which is 9a for black; white sees the
board rotated by 180 degrees. rsshogi's moves have sixteen bits: to, from or the dropped piece, dropped, promoted.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from parlmesh.types import Array

Form: TypeAlias = Literal["flat", "spatial"]

SQUARES = 81
FLAT, SPATIAL = 13_527, 11_259
_BOARD_MOVES, _PER_SQUARE = 12_960, 139
_PROMOTING, _KNIGHT, _DROPS = 64, 128, 132
# The eight slide directions as (row, column); up is forward.
_DIRECTIONS = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
# rsshogi's piece types in hand order P L N S G B R.
HAND_TYPES = (1, 2, 3, 4, 7, 5, 6)
_DROP_BIT, _PROMOTE_BIT = 1 << 14, 1 << 15
_NONE = -1

# Our square in black's view, by rsshogi's number, which counts file by file from 1a.
OURS: Array = np.array([(index % 9) * 9 + 8 - index // 9 for index in range(SQUARES)])
THEIRS: Array = np.argsort(OURS)


@dataclass(frozen=True, slots=True)
class MoveTable:
    """`number` [2, 65536] is our number of rsshogi's move by colour, −1 for none; `move` [2, choices] is the inverse, 0
    for an unused number."""

    choices: int
    number: Array
    move: Array


@lru_cache(maxsize=2)
def move_table(form: Form) -> MoveTable:
    """The cached table of a form."""
    choices = FLAT if form == "flat" else SPATIAL
    number, move = np.full((2, 1 << 16), _NONE, np.int32), np.zeros((2, choices), np.int32)
    for origin in range(SQUARES):
        for target in range(SQUARES):
            if origin == target:
                continue
            for promoting in (False, True):
                _enter(number, move, _board_number(form, origin, target, promoting), origin, target, promoting)
    for target in range(SQUARES):
        for place, kind in enumerate(HAND_TYPES):
            found = _BOARD_MOVES + target * 7 + place if form == "flat" else target * _PER_SQUARE + _DROPS + place
            for colour in (0, 1):
                code = _theirs(target, colour) | kind << 7 | _DROP_BIT
                number[colour, code], move[colour, found] = found, code
    return MoveTable(choices, number, move)


def _enter(number: Array, move: Array, found: int, origin: int, target: int, promoting: bool) -> None:
    if found == _NONE:
        return
    for colour in (0, 1):
        code = _theirs(target, colour) | _theirs(origin, colour) << 7 | promoting * _PROMOTE_BIT
        number[colour, code], move[colour, found] = found, code


def _theirs(square: int, colour: int) -> int:
    """rsshogi's number of the colour's `square`."""
    return int(THEIRS[80 - square if colour else square])


def _board_number(form: Form, origin: int, target: int, promoting: bool) -> int:
    if form == "flat":
        return origin * 160 + (target - (target > origin)) * 2 + promoting
    down, right = target // 9 - origin // 9, target % 9 - origin % 9
    if down == -2 and abs(right) == 1:
        return origin * _PER_SQUARE + _KNIGHT + 2 * promoting + (right == 1)
    distance = max(abs(down), abs(right))
    if down not in (0, distance, -distance) or right not in (0, distance, -distance):
        return _NONE
    direction = _DIRECTIONS.index((down // distance, right // distance))
    return origin * _PER_SQUARE + promoting * _PROMOTING + direction * 8 + distance - 1
