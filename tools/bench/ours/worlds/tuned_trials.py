"""`parlmesh tune` as a user starts it: trials a minute, and what its settings gain on seeds that it never used."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.policies import load_policy
from parlmesh.tuning.pruning_rung import train_rung
from parlmesh.tuning.search_space import checked
from parlmesh.worlds.placement.evaluation import evaluate_policy

from .world_training import HELD_OUT, children_seconds

# The world without its preset: the settings of a user who only names an environment.
STUDY: dict[str, Any] = {
    "training": {"environment": {"id": "parlmesh/Placement-v3"}, "evaluation_episodes": 64},
    "search": {
        "ppo.learning_rate": {"low": 3e-4, "high": 1e-2, "log": True},
        "ppo.discount": {"low": 0.7, "high": 0.99},
        # From the default up, so that the first trial can use the settings unchanged.
        "ppo.entropy_coefficient": {"low": 0.0, "high": 2e-2},
        "ppo.epochs": {"low": 2, "high": 10},
        "ppo.normalise_rewards": {"choices": [False, True]},
        "normalise_observations": {"choices": [False, True]},
        "num_envs": {"choices": [16, 32, 64]},
    },
    "steps": 100_000,
    "rungs": 4,
}
# So small that a trial takes two seconds, to measure trials a minute.
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
# Trials that leave the processor free, so that two at once differ from one even on a busy machine.
WAITING: dict[str, Any] = {
    "environment": {"id": "tools.bench.ground.slow_worlds:parlmesh-bench/Waiting-v0", "kwargs": {"seconds": 0.01}},
    "num_envs": 1,
    "trajectory_steps": 50,
    "evaluation_episodes": 1,
}
WAITING_STEPS = 600
OTHER_SEEDS = (101, 102, 103)
JUDGED_EPISODES = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=0, help="steps of a trial; 0 = the study's")
    parser.add_argument("--speed", action="store_true", help="only measure trials a minute, all equally long")
    parser.add_argument("--waiting", action="store_true", help="with --speed: trials that wait instead of computing")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    study = {**(SPEED if arguments.speed else STUDY), "trials": arguments.trials, "seed": arguments.seed}
    if arguments.waiting:
        study |= {"training": WAITING, "steps": WAITING_STEPS}
    study |= {"steps": arguments.steps} if arguments.steps else {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.yaml"
        file.write_text(yaml.safe_dump(study))
        command = [sys.executable, "-m", "parlmesh.cli", "tune", f"{folder}/study", "--config", str(file), "--json"]
        began, busy = time.perf_counter(), children_seconds()
        done = subprocess.run(
            [*command, "--parallel", str(arguments.workers)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"parlmesh tune ended with code {done.returncode}: {done.stderr[-1000:]}")
        minutes = (time.perf_counter() - began) / 60.0
        found = json.loads(done.stdout.splitlines()[-1])
        best = yaml.safe_load((Path(folder) / "study" / "best.yaml").read_text())["training"]
    result: dict[str, Any] = {"trials_per_minute": arguments.trials / minutes, "workers": arguments.workers}
    if not arguments.speed:
        spent = {"study_cpu_seconds": children_seconds() - busy}
        result |= {key: found[key] for key in ("pruned", "best_trial", "best_value", "default_value", "best_settings")}
        result |= {**spent, **gained(study, best)}
    print(json.dumps(result))


def gained(study: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Rewards per step with the tuned settings and with the original ones, both trained again for the same number of
    steps on other seeds, and evaluated on the same episodes, which no training had."""
    defaults = {**study["training"], "step_budget": study["steps"]}
    tuned, plain = ([judged(settings, seed, study["steps"]) for seed in OTHER_SEEDS] for settings in (best, defaults))
    better = sum(one > other for one, other in zip(tuned, plain, strict=True))
    return {"better_of_three": better, "tuned_rewards": tuned, "default_rewards": plain}


def judged(settings: dict[str, Any], seed: int, steps: int) -> float:
    """Reward per step with these settings after this many steps of training."""
    config = checked({**settings, "seed": seed, "evaluation_episodes": 1})
    rung = train_rung(config, (), {}, 0, steps)
    spec = environment_spec(config.environment.model_dump())
    trainer = trainer_for(config, policy_for(config, spec), spec, {}, max_policy_lag=0)
    trainer.restore(rung.tensors)
    policy = load_policy(trainer.policy_blob())
    return evaluate_policy(policy, 3, {}, JUDGED_EPISODES, HELD_OUT + 1000 * seed).reward


if __name__ == "__main__":
    main()
