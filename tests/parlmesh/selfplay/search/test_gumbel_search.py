"""Search finds the best move for the side to move, and its value to that side."""

import functools

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.selfplay.games import WORTH, Verdict
from parlmesh.selfplay.games.connect_four import ConnectFour
from parlmesh.selfplay.games.tictactoe import TicTacToe
from parlmesh.selfplay.search import Searcher, judge_of, search_trees
from parlmesh.selfplay.search.sequential_halving import visits_before
from parlmesh.selfplay.shogi.games import Shogi
from parlmesh.types import Search

ONE = np.array([0])


def blind(choices):
    """Knows nothing: all moves are equal and all positions even."""
    return lambda planes: (np.zeros((len(planes), choices), np.float32), np.zeros(len(planes), np.float32))


def found(games, simulations=64, judge=None, which=ONE, rng=None, **settings):
    return Searcher(Search(simulations, **settings)).find(games, which, judge or blind(games.choices), rng)


def after(game, moves):
    games = game(1)
    games.start(ONE, np.random.default_rng(0))
    for move in moves:
        assert games.play(ONE, np.array([move]))[0] == Verdict.GOES_ON
    return games


def exact():
    """The value of a tic-tac-toe board to the side to move, by exhaustive play."""

    @functools.cache
    def value(own, other):
        best = -2.0
        for square in range(9):
            if not ((own | other) >> square) & 1:
                placed = own | 1 << square
                full = (placed | other) == 0b111111111
                best = max(best, 1.0 if placed in won else 0.0 if full else -value(other, placed))
        return best

    lines = [0b111, 0b111000, 0b111000000, 0b1001001, 0b10010010, 0b100100100, 0b100010001, 0b1010100]
    won = {board for board in range(512) if any(board & line == line for line in lines)}

    def judge(planes):
        boards = planes.reshape(len(planes), 2, 9).astype(np.int64) @ (1 << np.arange(9))
        return np.zeros((len(planes), 9), np.float32), np.array(
            [value(*board) for board in boards.tolist()], np.float32
        )

    return judge


@pytest.mark.parametrize("moves", [[0, 1, 0, 1, 0, 1], [6, 0, 6, 0, 3, 0, 2]], ids=["first", "second"])
def test_each_side_wins_in_one(moves):
    games = after(ConnectFour, moves)
    searched = found(games, 128)
    assert games.winning(ONE)[0, searched.move[0]]
    assert searched.moves[0, searched.chances[0].argmax()] == searched.move[0]
    assert searched.chances[0].sum() == pytest.approx(1.0, abs=1e-5)
    assert searched.value[0] > 0.5


@pytest.mark.parametrize("moves", [[6, 0, 6, 0, 3, 0], [0, 6, 0, 5, 0]], ids=["first", "second"])
def test_each_side_blocks_in_one(moves):
    games = after(ConnectFour, moves)
    assert games.threatened(ONE)[0].nonzero()[0].tolist() == [0]
    assert found(games, 128).move[0] == 0


def test_a_lost_position_has_a_negative_value_for_the_losing_side():
    # Three in a row with both ends open: whatever the second side does, the first one wins.
    lost = found(after(ConnectFour, [2, 2, 3, 3, 4]), 512, considered=7)
    assert lost.value[0] < -0.3
    # One move earlier the first side makes that row, and it is worth as much to it.
    winning = found(after(ConnectFour, [2, 2, 3, 3]), 512, considered=7)
    assert winning.value[0] > 0.2
    assert winning.move[0] in (1, 4)


@pytest.mark.parametrize(
    ("sfen", "mate"),
    [("4k4/9/4P4/9/9/9/9/9/4K4 b G 1", "G*5b"), ("4k4/9/9/9/9/9/4p4/9/4K4 w g 1", "G*5h")],
    ids=["black", "white"],
)
def test_shogi_mates_in_one_for_both_sides(sfen, mate):
    games = Shogi(1, sfen=sfen)
    searched = found(games, 128, considered=128)
    assert games.usi(0, int(searched.move[0])) == mate
    assert searched.value[0] > 0.1


@pytest.mark.parametrize("moves", [[], [4], [0], [1], [0, 8], [0, 4, 8], [1, 4, 3], [0, 4, 7]], ids=str)
def test_with_exact_values_the_best_move_is_found(moves):
    games = after(TicTacToe, moves)
    judge = exact()
    worth = {}
    for move in np.flatnonzero(games.legal(ONE)[0]).tolist():
        room = games.room(1)
        room.copy_from(ONE, games, ONE)
        verdict = room.play(ONE, np.array([move]))[0]
        worth[move] = 1.0 if verdict == Verdict.WON else -float(judge(room.planes(ONE))[1][0])
    searched = found(games, 64, judge, considered=9)
    assert worth[int(searched.move[0])] == max(worth.values())
    # Even with noise it is found nearly always.
    every = games.room(40)
    every.copy_from(np.arange(40), games, np.zeros(40, np.int64))
    drawn = found(every, 64, judge, np.arange(40), np.random.default_rng(1), considered=9)
    assert np.mean([worth[int(move)] == max(worth.values()) for move in drawn.move]) >= 0.8


def test_a_planted_error_of_sign_is_found(monkeypatch):
    games = after(ConnectFour, [0, 1, 0, 1, 0, 1])
    monkeypatch.setattr(search_trees, "WORTH", -WORTH)
    searched = found(games, 128)
    assert searched.move[0] != 0
    assert searched.value[0] < 0.0


def test_games_are_searched_together_as_they_are_alone_and_left_as_they_were():
    positions = [[0, 1, 0, 1, 0, 1], [3], [2, 2, 3, 3, 4], []]
    together = ConnectFour(4)
    for row, moves in enumerate(positions):
        together.copy_from(np.array([row]), after(ConnectFour, moves), ONE)
    before = together.planes(np.arange(4))
    all_four = found(together, 32, which=np.arange(4))
    np.testing.assert_array_equal(together.planes(np.arange(4)), before)
    for row, moves in enumerate(positions):
        alone = found(after(ConnectFour, moves), 32)
        assert alone.move[0] == all_four.move[row]
        assert alone.value[0] == pytest.approx(all_four.value[row])


def test_a_copied_board_of_shogi_knows_its_repetitions():
    games = Shogi(1)
    there_and_back = ["2h3h", "8b7b", "3h2h", "7b8b"]
    for usi in there_and_back * 3:
        assert games.play(ONE, np.array([_number(games, usi)]))[0] == Verdict.GOES_ON or usi == "7b8b"
        if games.plies(ONE)[0] == 11:
            break
    room = games.room(3)
    room.copy_from(np.array([2]), games, ONE)
    assert room.play(np.array([2]), np.array([_number(games, "7b8b")]))[0] == Verdict.DRAWN
    assert games.plies(ONE)[0] == 11


def _number(games, usi):
    return next(move for move in np.flatnonzero(games.legal(ONE)[0]).tolist() if games.usi(0, move) == usi)


def test_simulations_are_shared_out_by_halving():
    assert visits_before(4, 8) == [0, 0, 0, 0, 1, 1, 2, 2]
    assert visits_before(1, 3) == [0, 1, 2]
    assert sorted(visits_before(16, 32)[:16]) == [0] * 16


def test_a_policy_without_values_cannot_search():
    with pytest.raises(InvalidInput, match="evaluates positions"):
        judge_of(object())  # type: ignore[arg-type]
