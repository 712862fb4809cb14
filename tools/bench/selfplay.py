"""Self-play: positions per CPU second of bare rules, with encoding, with the network and of the whole collector; bytes
per position on the wire; win rates of a preset after a fixed number of steps. One JSON line at the end.

`--quick` takes seconds and trains nothing; without it connect four is trained in this process for `--steps` steps, and
with `--shogi STEPS` shogi too.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from parlmesh.environments import environment_spec
from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.plugins import load_plugins
from parlmesh.policies import Policy, PolicySpec, load_policy, pack_policy
from parlmesh.rollouts import Collector, evaluate, play_match
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.registration import GAMES
from parlmesh.selfplay.scripted_players import PLAYERS, drawn
from parlmesh.types import Search, Trajectory
from parlmesh.wire import trajectory_to_request

GAMES_AT_ONCE = 256
SIMULATIONS, SEARCHED_AT_ONCE = 32, 32
TURNS = 5
JUDGES = ("random", "one_ply", "win_and_block")


def in_turn(steps: Mapping[str, Callable[[], int]], seconds: float) -> dict[str, float]:
    """Positions by CPU second of this process, of steps that take turns: what else the machine does meets all alike."""
    used, counts = dict.fromkeys(steps, 0.0), dict.fromkeys(steps, 0)
    for step in steps.values():
        step()
    for turn in range(1, TURNS + 1):
        for name, step in steps.items():
            while used[name] < seconds * turn / TURNS:
                started = time.process_time()
                counts[name] += step()
                used[name] += time.process_time() - started
    return {name: counts[name] / used[name] for name in steps}


def bare(name: str, *, encoding: bool, policy: Policy | None) -> Callable[[], int]:
    """Games by the rules, with planes and masks, and with a network that chooses."""
    games, which, rng = GAMES[name](GAMES_AT_ONCE), np.arange(GAMES_AT_ONCE), np.random.default_rng(0)
    games.start(which, rng)

    def step() -> int:
        legal = games.legal(which)
        moves = drawn(legal, rng)
        if encoding or policy is not None:
            planes = games.planes(which)
            if policy is not None:
                moves = policy.act(planes, rng, legal)[0]
        over = games.play(which, moves) != Verdict.GOES_ON
        if over.any():
            games.start(which[over], rng)
        return GAMES_AT_ONCE

    return step


def untrained(name: str) -> Policy:
    """The policy a run of this game starts with: a small residual network."""
    from parlmesh.policies.torch_networks import ActorCritic

    spec = PolicySpec.for_environment(environment_spec({"id": f"games/{name}"}), network="board", hidden=(32, 32))
    return load_policy(pack_policy(spec, ActorCritic(spec).named_weights()))


def collected(name: str, policy: Policy, sizes: list[float], search: Search | None = None) -> Callable[[], int]:
    """The collector of actors, both sides counted; `sizes` take bytes per trained position."""
    games = GAMES_AT_ONCE if search is None else SEARCHED_AT_ONCE
    collector = Collector({"id": f"games/{name}"}, games, np.random.SeedSequence(0), search=search)
    opponents = [Opponent(NEWEST, policy)]

    def step() -> int:
        fragment = collector.collect(policy, 8 if search is None else 1, opponents)
        request = trajectory_to_request(Trajectory("run", "actor", 1, 1, 1, fragment))
        sizes.append(len(request.request) / fragment.valid_steps)
        return 2 * fragment.valid_steps

    return step


def speeds(name: str, seconds: float) -> dict[str, Any]:
    """Of rules, encoding, network and collector, each with all before it, in one run."""
    policy, sizes = untrained(name), list[float]()
    found = in_turn(
        {
            "rules": bare(name, encoding=False, policy=None),
            "encoding": bare(name, encoding=True, policy=None),
            "network": bare(name, encoding=True, policy=policy),
            "collector": collected(name, policy, sizes),
        },
        seconds,
    )
    # Moves, each after a search of so many positions.
    found |= in_turn({f"search_{SIMULATIONS}": collected(name, policy, [], Search(SIMULATIONS))}, seconds)
    share = {"collector_share": round(found["collector"] / found["network"], 3)}
    return {key: round(value) for key, value in found.items()} | share | {"bytes_per_position": round(np.mean(sizes))}


def trained(preset: str, steps: int, seed: int) -> tuple[Policy, Policy, float]:
    """The policies that a run of a preset began and ended with, in one process, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "parlmesh.cli",
            "up",
            "--serial",
            "--free-ports",
            "--config",
            preset,
        ]
        command += ["--steps", str(steps), "--seed", str(seed), "--runs-dir", folder, "--run-id", "run", "--json"]
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - started
        policies = sorted((Path(folder) / "run" / "models").glob("*.safetensors"))
        policy = load_policy(policies[-1].read_bytes())
        first = load_policy(sorted((Path(folder) / "run" / "opponents").glob("*.safetensors"))[0].read_bytes())
    return first, policy, seconds


def won(policy: Policy, name: str, opponent: str, search: Search | None = None, **settings: Any) -> float:
    """Share of 400 greedy games; a draw and the limit are no wins."""
    environment = {"id": f"games/{name}", "kwargs": {"opponent": opponent, "opening_plies": 2, **settings}}
    return float((evaluate(policy, environment, 400, 1, search=search) > 0).mean())


def connect_four(steps: int, seed: int) -> dict[str, Any]:
    """By its preset; shares of games won against players written by hand, without search and with it."""
    first, policy, seconds = trained("selfplay-connect-four", steps, seed)
    found: dict[str, Any] = {"seed": seed, "steps": steps, "seconds": round(seconds, 1)}
    for judge in JUDGES:
        found[judge] = won(policy, "connect_four", judge)
        found[f"{judge}_search_{SIMULATIONS}"] = won(policy, "connect_four", judge, Search(SIMULATIONS))
    games = play_match(policy, first, {"id": "games/connect_four", "kwargs": {"opening_plies": 2}}, 400, 1)
    found["first_version"] = sum(game.result == 1 for game in games) / len(games)
    return found


def shogi(steps: int, seed: int) -> dict[str, Any]:
    """By its preset, against a random player: with and without a finisher, which mates in one, and beside it what that
    finisher is worth to an untrained network and what taking the largest piece is."""
    first, policy, seconds = trained("selfplay-shogi", steps, seed)
    found: dict[str, Any] = {"seed": seed, "steps": steps, "seconds": round(seconds, 1), "games": 400}
    found["without_finisher"] = won(policy, "shogi", "random")
    found["with_finisher"] = won(policy, "shogi", "random", finisher="learner")
    found["untrained_with_finisher"] = won(first, "shogi", "random", finisher="learner")
    found["untrained"] = won(first, "shogi", "random")
    found["greedy_capture"] = scripted("shogi", "greedy_capture")
    found["against_greedy_capture"] = won(policy, "shogi", "greedy_capture", finisher="learner")
    return found


def scripted(name: str, player: str) -> float:
    """Share of 400 games that a player written by hand wins against a random one, sides alternating."""
    games, rng = GAMES[name](400), np.random.default_rng(1)
    games.start(running := np.arange(400), rng)
    wins = 0
    while len(running):
        # The player begins in the games of even number; all games are at the same ply.
        ours = running % 2 == int(games.plies(running[:1])[0]) % 2
        moves, legal = np.zeros(len(running), np.int64), games.legal(running)
        for mine, chooser in ((ours, PLAYERS[player]), (~ours, PLAYERS["random"])):
            if mine.any():
                moves[mine] = chooser(games, running[mine], legal[mine], rng)
        verdicts = games.play(running, moves)
        wins += int(((verdicts == Verdict.WON) & ours).sum() + ((verdicts == Verdict.LOST) & ~ours).sum())
        running = running[verdicts == Verdict.GOES_ON]
    return wins / 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds, without training")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--peers", choices=("none",), default="none", help="there is none to compare with here")
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: all that is compared runs in turn")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds of each speed")
    parser.add_argument("--steps", type=int, default=3_000_000, help="steps of each training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shogi", type=int, default=0, metavar="STEPS", help="train shogi too, so many steps")
    given = parser.parse_args()
    load_plugins(["selfplay"])
    seconds = 1.0 if given.quick else given.seconds
    found: dict[str, Any] = {
        "benchmark": "selfplay",
        "games_at_once": GAMES_AT_ONCE,
        "python": platform.python_version(),
    }
    for name in ("connect_four", "shogi"):
        found[name] = speeds(name, seconds)
        print(name, found[name], file=sys.stderr)
    if not given.quick:
        found["connect_four"]["trained"] = [connect_four(given.steps, seed) for seed in range(given.seeds)]
    if given.shogi:
        found["shogi"]["trained"] = shogi(given.shogi, 0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
