"""Declarations in constructed positions, around the threshold."""

import numpy as np
import pytest
from rsshogi.core import Board, Move

from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.shogi.games import Shogi, cells_of, hands_of
from parlmesh.selfplay.shogi.impasse import declared, points_of

ONE = np.array([0])
# Black's king and ten others in the camp: two rooks and a bishop of five points each, seven of one; and the hand.
CAMP = "+R+R+B1K4/GGGG5/SSS6/9/9/9/9/9/4k4"


def position(hand, turn="b"):
    board = Board(f"{CAMP} {turn} {hand} 1")
    return cells_of(board)[None], hands_of(board)[None], np.array([0])


@pytest.mark.parametrize(
    ("hand", "points", "rule", "wins", "draws"),
    [
        ("5P", 27, "27", False, False),
        ("6P", 28, "27", True, False),
        ("P", 23, "24", False, False),
        ("2P", 24, "24", False, True),
        ("8P", 30, "24", False, True),
        ("9P", 31, "24", True, False),
    ],
)
def test_points_decide_for_black(hand, points, rule, wins, draws):
    cells, hands, colours = position(hand)
    found, entered = points_of(cells, hands, colours)
    assert (int(found[0]), bool(entered[0])) == (points, True)
    won, drawn = declared(rule, cells, hands, colours)
    assert (bool(won[0]), bool(drawn[0])) == (wins, draws)


def test_white_needs_one_point_less():
    cells, hands, _ = position("5P")
    turned = np.where(cells > 0, (cells + 16) % 32, 0)[:, ::-1].astype(np.uint8)
    won, _ = declared("27", turned, hands[:, ::-1], np.array([1]))
    assert won[0]


def test_nine_pieces_or_a_king_outside_are_not_enough():
    for cells in ("+R+R+B1K4/GGGG5/SS7/9/9/9/9/9/4k4", "+R+R+B6/GGGG5/SSS6/4K4/9/9/9/9/4k4"):
        board = Board(f"{cells} b 18P 1")
        won, drawn = declared("27", cells_of(board)[None], hands_of(board)[None], np.array([0]))
        assert not won[0]
        assert not drawn[0]


@pytest.mark.parametrize(("rule", "verdict"), [("27", Verdict.LOST), ("none", Verdict.GOES_ON)])
def test_a_game_ends_when_the_side_to_move_may_declare(rule, verdict):
    games = Shogi(1, sfen=f"{CAMP} w 9P 1", impasse=rule)
    number = games._table.number[1, int(Move.from_usi("5i5h"))]
    assert int(games.play(ONE, np.array([number]))[0]) == verdict


def test_nobody_declares_in_check():
    games = Shogi(1, sfen="+R+R+B1K4/GGGG5/SSS6/9/9/9/9/3k5/9 w 9Pl 1", impasse="27")
    number = games._table.number[1, int(Move.from_usi("L*5e"))]
    # The lance gives no check: it looks down the board.
    assert int(games.play(ONE, np.array([number]))[0]) == Verdict.LOST
    games = Shogi(1, sfen="+R+R+B1K4/GGGG5/SSS6/9/9/9/9/3k5/9 w 9Pr 1", impasse="27")
    number = games._table.number[1, int(Move.from_usi("R*5e"))]
    assert int(games.play(ONE, np.array([number]))[0]) == Verdict.GOES_ON
