"""`parlmesh tune` as a user starts it: trials a minute, and what its settings gain on seeds that it never had."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from parlmesh.tuning.pruning_rung import train_rung
from parlmesh.tuning.search_space import checked

# The world as it is, and nothing of its preset: what a user has who names an environment alone.
STUDY: dict[str, Any] = {
    "training": {"environment": {"id": "parlmesh/Placement-v3"}, "evaluation_episodes": 64},
    "search": {
        "ppo.learning_rate": {"low": 3e-4, "high": 1e-2, "log": True},
        "ppo.discount": {"low": 0.7, "high": 0.99},
        "ppo.entropy_coefficient": {"low": 1e-4, "high": 3e-2, "log": True},
        "ppo.epochs": {"low": 2, "high": 10},
        "ppo.normalise_rewards": {"choices": [False, True]},
        "normalise_observations": {"choices": [False, True]},
        "num_envs": {"choices": [16, 32, 64]},
    },
    "steps": 100_000,
    "rungs": 4,
}
# So small that a trial takes two seconds: for their number in a minute.
SPEED: dict[str, Any] = {
    "training": {
        "environment": {
            "id": "parlmesh/Placement-v3",
            "kwargs": {"nodes": 3, "deployments": 1, "episode_steps": 64},
        },
        "num_envs": 16,
        "evaluation_episodes": 128,
    },
    "search": {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
    "steps": 30_000,
    "rungs": 1,
    "pruner": "none",
}
# Trials that leave the processor to others, so that two at once can be told from one on a busy machine too.
WAITING: dict[str, Any] = {
    "environment": {"id": "tools.bench.ground.slow_worlds:parlmesh-bench/Waiting-v0", "kwargs": {"seconds": 0.01}},
    "num_envs": 1,
    "trajectory_steps": 50,
    "evaluation_episodes": 1,
}
WAITING_STEPS = 600
OTHER_SEEDS = (101, 102, 103)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--speed", action="store_true", help="trials a minute alone, each as long as the others")
    parser.add_argument("--waiting", action="store_true", help="with --speed: trials that wait instead of computing")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    study = {**(SPEED if arguments.speed else STUDY), "trials": arguments.trials, "seed": arguments.seed}
    if arguments.waiting:
        study |= {"training": WAITING, "steps": WAITING_STEPS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(yaml.safe_dump(study))
        command = [sys.executable, "-m", "parlmesh.cli", "tune", f"{folder}/study", "--config", str(file), "--json"]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "--workers", str(arguments.workers)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"parlmesh tune ended with code {done.returncode}: {done.stderr[-1000:]}")
        minutes = (time.perf_counter() - began) / 60.0
        found = json.loads(done.stdout.splitlines()[-1])
        best = yaml.safe_load((Path(folder) / "study" / "best.yaml").read_text())["training"]
    result: dict[str, Any] = {"trials_per_minute": arguments.trials / minutes, "workers": arguments.workers}
    if not arguments.speed:
        result |= {"pruned": found["pruned"], **gained(study, best)}
    print(json.dumps(result))


def gained(study: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Returns of the tuned settings and of the settings as they were, both trained anew on other seeds."""
    defaults = {**study["training"], "step_budget": study["steps"]}
    tuned, plain = (
        [
            train_rung(checked({**settings, "seed": seed, "evaluation_episodes": 64}), (), {}, 0, study["steps"]).value
            for seed in OTHER_SEEDS
        ]
        for settings in (best, defaults)
    )
    better = sum(one > other for one, other in zip(tuned, plain, strict=True))
    return {"better_of_three": better, "tuned_returns": tuned, "default_returns": plain}


if __name__ == "__main__":
    main()
