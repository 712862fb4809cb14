"""Self-play: positions per CPU second of bare rules, with encoding, with the network and of the whole collector; bytes
per position on the wire; win rates of a preset after a fixed number of steps. One JSON line at the end.

`--quick` takes seconds and trains nothing; without it connect four is trained in this process for `--steps` steps.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from parlmesh.environments import environment_spec
from parlmesh.environments.opponents import NEWEST, Opponent
from parlmesh.plugins import load_plugins
from parlmesh.policies import Policy, PolicySpec, load_policy, pack_policy
from parlmesh.rollouts import Collector, evaluate, play_match
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.players import drawn
from parlmesh.selfplay.registration import GAMES
from parlmesh.types import Trajectory
from parlmesh.wire import trajectory_to_request

GAMES_AT_ONCE = 256
JUDGES = ("random", "one_ply", "win_and_block")


def per_second(step: Callable[[], int], seconds: float) -> float:
    """Positions of repeated steps by CPU second of this process."""
    step()
    started, count = time.process_time(), 0
    while time.process_time() - started < seconds:
        count += step()
    return count / (time.process_time() - started)


def bare(name: str, *, encoding: bool, policy: Policy | None, seconds: float) -> float:
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

    return per_second(step, seconds)


def untrained(name: str) -> Policy:
    """The policy a run of this game starts with: a small residual network."""
    from parlmesh.policies.network import ActorCritic

    spec = PolicySpec.for_environment(environment_spec({"id": f"games/{name}"}), network="board", hidden=(32, 32))
    return load_policy(pack_policy(spec, ActorCritic(spec).named_weights()))


def collected(name: str, policy: Policy, seconds: float) -> tuple[float, float]:
    """Positions per CPU second of the collector of actors, both sides counted, and bytes per trained position."""
    collector = Collector({"id": f"games/{name}"}, GAMES_AT_ONCE, np.random.SeedSequence(0))
    opponents, sizes = [Opponent(NEWEST, policy)], []

    def step() -> int:
        fragment = collector.collect(policy, 8, opponents)
        request = trajectory_to_request(Trajectory("run", "actor", 1, 1, 1, fragment))
        sizes.append(len(request.request) / fragment.valid_steps)
        return 2 * fragment.valid_steps

    return per_second(step, seconds), float(np.mean(sizes))


def trained(steps: int, seed: int) -> dict[str, Any]:
    """Connect four by its preset, in one process; shares of games won against players written by hand."""
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
            "selfplay-connect-four",
        ]
        command += ["--steps", str(steps), "--seed", str(seed), "--runs-dir", folder, "--run-id", "run", "--json"]
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - started
        policies = sorted((Path(folder) / "run" / "models").glob("*.safetensors"))
        policy = load_policy(policies[-1].read_bytes())
        first = load_policy(sorted((Path(folder) / "run" / "opponents").glob("*.safetensors"))[0].read_bytes())
    found: dict[str, Any] = {"seed": seed, "steps": steps, "seconds": round(seconds, 1)}
    for judge in JUDGES:
        environment = {"id": "games/connect_four", "kwargs": {"opponent": judge, "opening_plies": 2}}
        found[judge] = float((evaluate(policy, environment, 400, 1) > 0).mean())
    games = play_match(policy, first, {"id": "games/connect_four", "kwargs": {"opening_plies": 2}}, 400, 1)
    found["first_version"] = sum(game.result == 1 for game in games) / len(games)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds, without training")
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--peers", choices=("none",), default="none", help="there is none to compare with here")
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: all that is compared runs in turn")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds of each speed")
    parser.add_argument("--steps", type=int, default=3_000_000, help="steps of each training")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    load_plugins(["selfplay"])
    seconds = 1.0 if given.quick else given.seconds
    found: dict[str, Any] = {
        "benchmark": "selfplay",
        "games_at_once": GAMES_AT_ONCE,
        "python": platform.python_version(),
    }
    for name in ("connect_four", "shogi"):
        policy = untrained(name)
        rules = bare(name, encoding=False, policy=None, seconds=seconds)
        encoded = bare(name, encoding=True, policy=None, seconds=seconds)
        whole = bare(name, encoding=True, policy=policy, seconds=seconds)
        fleet, size = collected(name, policy, seconds)
        speeds = {"rules": rules, "encoding": encoded, "network": whole, "collector": fleet}
        found[name] = {key: round(value) for key, value in speeds.items()}
        found[name] |= {"collector_share": round(fleet / whole, 3), "bytes_per_position": round(size)}
        print(name, found[name], file=sys.stderr)
    if not given.quick:
        found["connect_four"]["trained"] = [trained(given.steps, seed) for seed in range(given.seeds)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
