"""The results of self-play presets after a number of steps, measured against handwritten players."""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.algorithms.ratings import ratings
from parlmesh.policies import Policy, load_policy
from parlmesh.rollouts import evaluate, play_match
from parlmesh.selfplay.registration import GAMES
from parlmesh.selfplay.scripted_players import PLAYERS
from parlmesh.types import Search

from .shogi_referee import contest, refereed

JUDGES = ("random", "one_ply", "win_and_block")
SIMULATIONS = 32
_GAMES = 400


@dataclass(frozen=True, slots=True)
class Trained:
    """The first and last policies of a run, and its cost."""

    first: Policy
    last: Policy
    took: dict[str, Any]


def trained(preset: str, seed: int, steps: int | None, actors: int = 0) -> Trained:
    """Trains with `parlmesh up`: in one process if `actors` is 0, for the preset's budget if `steps` is None."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--no-dashboard", "--json"]
        command += ["--config", preset, "--seed", str(seed), "--runs-dir", folder, "--run-id", "run"]
        command += ["--actors", str(actors)] if actors else ["--serial"]
        command += ["--steps", str(steps)] if steps is not None else []
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        progress = json.loads(done.stdout.splitlines()[-1])["training"]["progress"]
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        took = {"seed": seed, "steps": progress["steps"], "seconds": round(progress["elapsed_seconds"], 1)}
        run = Path(folder) / "run"
        first = load_policy(sorted((run / "opponents").glob("*.safetensors"))[0].read_bytes())
        last = load_policy((run / "policy.safetensors").read_bytes())
    return Trained(first, last, took | {"processor_seconds": round(processor, 1)})


def won(policy: Policy, game: str, opponent: str, search: Search | None = None, **settings: Any) -> float:
    """Share of 400 greedy games won, after at most two random plies; draws and games at the limit are not wins."""
    environment = {"id": f"games/{game}", "kwargs": {"opponent": opponent, "opening_plies": 2, **settings}}
    return float((evaluate(policy, environment, _GAMES, 1, search=search) > 0).mean())


def rated(run: Trained, game: str) -> dict[str, float]:
    """Elo of the last version over the first, from 400 games, and half of its 95 % interval."""
    environment = {"id": f"games/{game}", "kwargs": {"opening_plies": 2}}
    games = play_match(run.last, run.first, environment, _GAMES, 1)
    wins, draws = (sum(each.result == result for each in games) for result in (1, 0))
    rating = ratings({(2, 1): (wins, draws, len(games) - wins - draws)})[2]
    return {"elo": round(rating.elo), "elo_error": round(rating.error)}


def scripted(game: str, player: str) -> float:
    """Share of 400 games that a handwritten player wins against a random one, sides alternating."""
    return contest(GAMES[game](_GAMES), PLAYERS[player], PLAYERS["random"], np.random.default_rng(1)) / _GAMES


def connect_four(seed: int, steps: int | None) -> dict[str, Any]:
    """Shares of games won, without search and with it."""
    run = trained("selfplay-connect-four", seed, steps)
    found = dict(run.took)
    for judge in JUDGES:
        found[judge] = won(run.last, "connect_four", judge)
        found[f"{judge}_search_{SIMULATIONS}"] = won(run.last, "connect_four", judge, Search(SIMULATIONS))
    return found | rated(run, "connect_four")


def shogi(seed: int, steps: int | None) -> dict[str, Any]:
    """Shares won against a random player with and without a finisher, which mates in one; for comparison, those of an
    untrained network with it, and of always taking the largest piece."""
    run = trained("selfplay-shogi", seed, steps)
    return {
        **run.took,
        "without_finisher": won(run.last, "shogi", "random"),
        "with_finisher": won(run.last, "shogi", "random", finisher="learner"),
        "untrained": won(run.first, "shogi", "random"),
        "untrained_with_finisher": won(run.first, "shogi", "random", finisher="learner"),
        "greedy_capture": scripted("shogi", "greedy_capture"),
        "against_greedy_capture": won(run.last, "shogi", "greedy_capture", finisher="learner"),
        **rated(run, "shogi"),
        **refereed(run.last, _GAMES),
    }
