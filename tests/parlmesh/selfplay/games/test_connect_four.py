"""Connect four: lines in all four directions, a full board, and what wins or threatens to."""

import numpy as np
import pytest

from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.games.connect_four import ConnectFour

ONE = np.array([0])


def played(moves):
    games = ConnectFour(1)
    games.start(ONE, np.random.default_rng(0))
    return games, [int(games.play(ONE, np.array([move]))[0]) for move in moves]


@pytest.mark.parametrize(
    "moves",
    [
        [0, 1, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 2, 2, 3],
        [0, 1, 1, 2, 2, 3, 2, 3, 3, 5, 3],
        [6, 5, 5, 4, 4, 3, 4, 3, 3, 1, 3],
    ],
    ids=["column", "row", "rising", "falling"],
)
def test_the_fourth_in_a_line_wins_and_nothing_is_legal_after_it(moves):
    games, verdicts = played(moves)
    assert verdicts[:-1] == [Verdict.GOES_ON] * (len(moves) - 1)
    assert verdicts[-1] == Verdict.WON
    assert not games.legal(ONE).any()


def test_a_line_does_not_go_round_the_edge():
    # Three on top of column 0 and one at the bottom of column 1 are neighbours in the bit board but for the spare row.
    _, verdicts = played([1, 0, 2, 0, 3, 0, 6, 0])
    assert verdicts[-1] == Verdict.WON
    _, verdicts = played([0, 2, 0, 2, 3, 0, 0, 3, 0, 4, 0, 4, 1])
    assert verdicts[-1] == Verdict.GOES_ON


def test_a_full_board_is_drawn():
    columns = [
        0,
        1,
        0,
        1,
        0,
        1,
        1,
        0,
        1,
        0,
        1,
        0,
        2,
        3,
        2,
        3,
        2,
        3,
        3,
        2,
        3,
        2,
        3,
        2,
        4,
        5,
        4,
        5,
        4,
        5,
        5,
        4,
        5,
        4,
        5,
        4,
    ]
    _, verdicts = played([*columns, 6, 6, 6, 6, 6, 6])
    assert verdicts[-1] == Verdict.DRAWN
    assert set(verdicts[:-1]) == {Verdict.GOES_ON}


def test_winning_and_threatened_columns_are_those_that_make_a_line():
    games, _ = played([0, 1, 0, 1, 0, 1])
    assert np.flatnonzero(games.winning(ONE)[0]).tolist() == [0]
    assert np.flatnonzero(games.threatened(ONE)[0]).tolist() == [1]
