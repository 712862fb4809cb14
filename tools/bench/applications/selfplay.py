"""Self-play: positions per CPU second of bare rules, with encoding, with the network, of the whole collector and of a
fleet that learns; bytes per position on the wire; win rates of a preset after its budget, beside sb3-contrib's
MaskablePPO on PettingZoo's connect_four_v3. One JSON line at the end.

`--quick` takes seconds and trains nothing; without it connect four is trained on three seeds, and with `--shogi STEPS`
shogi too.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from parlmesh.environments import environment_spec
from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.plugins import load_plugins
from parlmesh.policies import Policy, PolicySpec, load_policy, pack_policy
from parlmesh.rollouts import Collector
from parlmesh.selfplay.games import Verdict
from parlmesh.selfplay.registration import GAMES
from parlmesh.selfplay.scripted_players import drawn
from parlmesh.types import Search, Trajectory
from parlmesh.wire import trajectory_to_request
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.venvs import PeerUnavailable, peer_python
from tools.bench.ours.training.selfplay_runs import SIMULATIONS, connect_four, shogi, trained

GAMES_AT_ONCE = 256
SEARCHED_AT_ONCE = 32
TURNS = 5
KNOWN_PEERS = ("sb3games",)
_FLEET_STEPS = 40_000


def in_turn(steps: Mapping[str, Callable[[], int]], seconds: float) -> dict[str, float]:
    """Positions per CPU second of this process; the steps take turns, so that other load affects all equally."""
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
    """Speeds of rules, encoding, network and collector, each including those before it, in one run."""
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
    # Moves, each after a search of SIMULATIONS positions.
    found |= in_turn({f"search_{SIMULATIONS}": collected(name, policy, [], Search(SIMULATIONS))}, seconds)
    share = {"collector_share": round(found["collector"] / found["network"], 3)}
    return {key: round(value) for key, value in found.items()} | share | {"bytes_per_position": round(np.mean(sizes))}


def fleet(steps: int) -> dict[str, float]:
    """Positions a second of a whole fleet with two actors, learning included, by the clock and by processor time."""
    took = trained("selfplay-connect-four", 0, steps, actors=2).took
    return {
        "fleet_by_clock": round(2 * took["steps"] / took["seconds"]),
        "fleet": round(2 * took["steps"] / took["processor_seconds"]),
    }


def peer(name: str, steps: int, seeds: range) -> list[dict[str, Any]] | str:
    """The result of sb3-contrib's MaskablePPO on PettingZoo's connect_four_v3, or why it cannot be measured."""
    try:
        python = peer_python(name)
    except PeerUnavailable as error:
        return str(error)
    found = []
    for seed in seeds:
        command = [str(python), str(PEERS / "sb3_connect_four.py"), "--steps", str(steps), "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{name} failed: {(done.stderr.splitlines() or ['no reason given'])[-1]}"
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds of each speed")
    parser.add_argument("--steps", type=int, default=None, help="steps of each training (default: the preset's)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N")
    parser.add_argument("--shogi", type=int, default=0, metavar="STEPS", help="train shogi too, for this many steps")


def main(options: Options) -> None:
    given = options.more
    load_plugins(["selfplay"])
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    found: dict[str, Any] = {
        "benchmark": "selfplay",
        "games_at_once": GAMES_AT_ONCE,
        "python": platform.python_version(),
        "command": options.command,
    }
    for name in ("connect_four", "shogi"):
        found[name] = speeds(name, 1.0 if options.quick else given.seconds)
        print(name, found[name], file=sys.stderr)
    if not options.quick:
        found["connect_four"] |= fleet(_FLEET_STEPS)
        runs = []
        for seed in seeds:
            runs.append(connect_four(seed, given.steps))
            print("connect_four", runs[-1], file=sys.stderr)
        found["connect_four"]["trained"] = runs
        # The same number of steps; the peer counts moves of both sides, we count those of the learning side.
        for name in options.peers:
            found["connect_four"][name] = peer(name, int(runs[0]["steps"]), seeds)
    if given.shogi:
        found["shogi"]["trained"] = shogi(given.first_seed, given.shogi)
    print(json.dumps(found))


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS, add_arguments=_arguments))
