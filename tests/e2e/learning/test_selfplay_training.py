"""What self-play learns by the presets: long, and measured against players written by hand."""

import math
import resource
import subprocess
import sys

import numpy as np
import pytest

from parlmesh.algorithms.ratings import ratings
from parlmesh.plugins import load_plugins
from parlmesh.policies import load_policy
from parlmesh.rollouts import evaluate, play_match
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.games.tictactoe import TicTacToe
from parlmesh.types import Search

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

ONE = np.array([0])


def trained(folder, preset, seed, *more):
    """The policies a run began and ended with; what it took is printed."""
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--serial", "--free-ports", "--json", "--config", preset]
    command += ["--seed", str(seed), "--runs-dir", str(folder), "--run-id", "run", *more]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=7000)
    assert done.returncode == 0, done.stderr[-1000:]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print({"preset": preset, "seed": seed, "processor_seconds": round(processor)})
    load_plugins(["selfplay"])
    last = folder / "run" / "policy.safetensors"
    first = sorted((folder / "run" / "opponents").glob("*.safetensors"))[0]
    return load_policy(first.read_bytes()), load_policy(last.read_bytes())


def won(policy, game, opponent, search=None, **settings):
    """Share of 400 greedy games; draws and the limit are no wins."""
    environment = {"id": f"games/{game}", "kwargs": {"opponent": opponent, "opening_plies": 2, **settings}}
    return float((evaluate(policy, environment, 400, 1, search=search) > 0).mean())


def rated(last, first, game, **settings):
    """Elo of the last version over the first, and half of its 95 % interval."""
    environment = {"id": f"games/{game}", "kwargs": {"opening_plies": 2, **settings}}
    games = play_match(last, first, environment, 400, 1)
    wins, draws = (sum(each.result == result for each in games) for result in (1, 0))
    return ratings({(2, 1): (wins, draws, len(games) - wins - draws)})[2]


# Seeds that settings were not chosen by.
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_connect_four_beats_random_and_who_wins_at_once(tmp_path, seed):
    first, last = trained(tmp_path, "selfplay-connect-four", seed)
    players = ("random", "one_ply", "win_and_block")
    found = {name: won(last, "connect_four", name) for name in players}
    searched = {name: won(last, "connect_four", name, Search(32)) for name in players}
    print({"without search": found, "with 32 simulations": searched})
    assert found["random"] >= 0.95
    assert found["one_ply"] >= 0.8
    for name, share in found.items():
        # Two standard errors of a difference of 400 games each.
        assert searched[name] >= share - 2.0 * math.sqrt(2.0 * share * (1.0 - share) / 400)
    rating = rated(last, first, "connect_four")
    print({"elo over the first version": rating})
    assert rating.elo - rating.error > 0.0


def losses(policy, seat, moves=()):
    """Games that a policy loses on a seat, whatever is replied, each as its moves."""
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


@pytest.mark.parametrize("seed", range(3))
def test_tictactoe_never_loses_whatever_is_replied(tmp_path, seed):
    _, last = trained(tmp_path, "selfplay-tictactoe", seed)
    assert losses(last, 0) == []
    assert losses(last, 1) == []


@pytest.mark.timeout(7200)
def test_shogi_beats_random_and_its_own_beginning(tmp_path):
    first, last = trained(tmp_path, "selfplay-shogi", 0, "--steps", "2000000")
    options = {"options": {"max_plies": 320}}
    found = {
        "without finisher": won(last, "shogi", "random", **options),
        "with finisher": won(last, "shogi", "random", finisher="learner", **options),
        "untrained with finisher": won(first, "shogi", "random", finisher="learner", **options),
    }
    print(found)
    assert found["without finisher"] >= 0.6
    assert found["with finisher"] >= 0.95
