"""PettingZoo's games and our own of the same name are the same games."""

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.games.connect_four import ConnectFour
from parlmesh.selfplay.games.petting_zoo import PettingZooGames
from parlmesh.selfplay.games.tictactoe import TicTacToe
from parlmesh.selfplay.scripted_players import drawn


@pytest.mark.parametrize(
    ("native", "name"),
    [(ConnectFour, "pettingzoo.classic:connect_four_v3"), (TicTacToe, "pettingzoo.classic:tictactoe_v3")],
)
def test_native_games_agree_with_petting_zoo_move_by_move(native, name):
    rng, which = np.random.default_rng(0), np.arange(12)
    ours, theirs = native(12), PettingZooGames(12, name)
    ours.start(which, rng)
    theirs.start(which, rng)
    assert (ours.shape, ours.choices, ours.dtype) == (theirs.shape, theirs.choices, theirs.dtype)
    ends = []
    while len(which):
        legal = ours.legal(which)
        np.testing.assert_array_equal(legal, theirs.legal(which))
        for waiting in (False, True):
            np.testing.assert_array_equal(ours.planes(which, waiting=waiting), theirs.planes(which, waiting=waiting))
        moves = drawn(legal, rng)
        verdicts = ours.play(which, moves)
        np.testing.assert_array_equal(verdicts, theirs.play(which, moves))
        ends += verdicts[verdicts != Verdict.GOES_ON].tolist()
        which = which[verdicts == Verdict.GOES_ON]
    assert set(ends) <= {Verdict.WON, Verdict.DRAWN}
    assert Verdict.WON in ends


def test_a_missing_game_or_one_not_for_two_is_refused_by_name():
    with pytest.raises(InvalidInput, match="nothing_v0"):
        PettingZooGames(1, "pettingzoo.classic:nothing_v0")
