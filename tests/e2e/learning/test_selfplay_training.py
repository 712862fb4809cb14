"""What self-play learns with the presets, measured against hand-written players; slow."""

import math

import numpy as np
import pytest

from parlmesh.plugins import load_plugins
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.games.tictactoe import TicTacToe
from tools.bench.ours.training.selfplay_runs import JUDGES, SIMULATIONS, connect_four, shogi, trained

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

ONE = np.array([0])
# A seed by which no setting was chosen.
SEEDS = (11, 12, 13)
# Losses on seed 13 led to the present preset.
OTHER_SEEDS = (21, 22, 23, 24, 25)


@pytest.fixture(autouse=True)
def networks():
    load_plugins(["selfplay"])


@pytest.mark.parametrize("seed", SEEDS)
def test_connect_four_beats_a_random_player_and_one_that_takes_immediate_wins(seed):
    found = connect_four(seed, None)
    print(found)
    assert found["random"] >= 0.95
    assert found["one_ply"] >= 0.8
    for name in JUDGES:
        share = found[name]
        # Two standard errors of a difference of 400 games each.
        error = 2.0 * math.sqrt(2.0 * share * (1.0 - share) / 400)
        assert found[f"{name}_search_{SIMULATIONS}"] >= share - error
    assert found["elo"] > found["elo_error"]


def losses(policy, seat, moves=()):
    """Games that a policy on this seat loses to some replies, each as its moves."""
    games = TicTacToe(1)
    games.start(ONE, np.random.default_rng(0))
    verdict = Verdict.GOES_ON
    for move in moves:
        verdict = Verdict(int(games.play(ONE, np.array([move]))[0]))
    if verdict == Verdict.WON:
        return [] if (len(moves) - 1) % 2 == seat else [moves]
    if verdict == Verdict.DRAWN:
        return []
    legal = games.legal(ONE)
    if len(moves) % 2 == seat:
        replies = [int(policy.greedy(games.planes(ONE), legal)[0][0])]
    else:
        replies = np.flatnonzero(legal[0]).tolist()
    return [lost for move in replies for lost in losses(policy, seat, (*moves, move))]


@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_tictactoe_never_loses_whatever_the_reply(seed):
    run = trained("selfplay-tictactoe", seed, None)
    print(run.took)
    assert losses(run.last, 0) == []
    assert losses(run.last, 1) == []


@pytest.mark.timeout(7200)
def test_shogi_beats_a_random_player_and_its_first_version():
    found = shogi(SEEDS[0], None)
    print(found)
    assert found["without_finisher"] >= 0.95
    assert found["with_finisher"] >= 0.95
    assert found["with_finisher"] > found["untrained_with_finisher"]
    assert found["elo"] > found["elo_error"]
    # Skipped where the referee is not installed.
    assert found.get("illegal_moves", 0) == found.get("disputed_mates", 0) == 0
