"""Encodes positions as planes, many at once, without Python code per square.

46 planes of 9 x 9 from one side's view: 0–7 own P L N S G B R K, 8–13 own promoted P L N S B R, 14–27 the same for the
other side, 28–34 own hand and 35–41 the other's as piece counts, 42 ones for white, 43 the ply in sixteenths of the
move limit, 44 and 45 zero.
"""

import numpy as np

from parlmesh.types import Array

PLANES = 46
_HAND_PLANES, _COLOUR, _PLY = 28, 42, 43
# By rsshogi's piece type 1–14: P L N S B R G K and the promoted ones.
_PLANE_OF_TYPE = (0, 1, 2, 3, 5, 6, 4, 7, 8, 9, 10, 11, 12, 13)
WHITE = 16
"""Added to the type of a white piece."""
_EMPTY = 45

# The plane by viewing colour and piece. Empty squares go to a plane that is cleared afterwards.
_PLANE: Array = np.full((2, 32), _EMPTY, np.int64)
for _kind, _plane in enumerate(_PLANE_OF_TYPE, start=1):
    for _colour in (0, 1):
        _PLANE[_colour, _kind] = _plane + 14 * _colour
        _PLANE[_colour, _kind + WHITE] = _plane + 14 * (1 - _colour)


def planes_of(boards: Array, hands: Array, colours: Array, plies: Array, limit: int) -> Array:
    """Planes uint8 [N, 46, 9, 9] from black's boards [N, 81] and hands [N, 2, 7], in the view of `colours` [N]."""
    count = len(boards)
    white = colours == 1
    seen = np.where(white[:, None], boards[:, ::-1], boards)
    found = np.zeros((count, PLANES, 81), np.uint8)
    found[np.arange(count)[:, None], _PLANE[colours[:, None], seen], np.arange(81)] = 1
    found[:, _EMPTY] = 0
    own = np.where(white[:, None, None], hands[:, ::-1], hands)
    found[:, _HAND_PLANES:_COLOUR] = own.reshape(count, 14, 1)
    found[:, _COLOUR] = white[:, None]
    found[:, _PLY] = np.minimum(plies * 16 // limit, 16)[:, None]
    return found.reshape(count, PLANES, 9, 9)
