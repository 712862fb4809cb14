"""Trained steps per second of SAC on Pendulum-v1 with the usual network: of `parlmesh up --serial`, or of its parts
alone in this process, each of them timed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.training.continuous.critics import TwinCritics
from parlmesh.training.continuous.policy_network import PolicyNetwork
from parlmesh.training.replay_trainer import ReplayTrainer
from parlmesh.training.settings.run import TrainingConfig

from . import curve
from .learning import up_command
from .training import NEVER, json_lines

PRESET, HIDDEN, WARM_UP = "sac-pendulum", 256, 1_000
REPLAY = {"capacity_steps": 100_000, "min_steps": WARM_UP, "samples_per_insert": 256.0}
# The parts of a gradient step, and the rest.
PARTS: tuple[tuple[str, type, str], ...] = (
    ("policy forward", PolicyNetwork, "forward"),
    ("target critics", TwinCritics, "target"),
    ("critics", TwinCritics, "fit"),
    ("critics for the actor", TwinCritics, "lowest"),
    ("actor backward", PolicyNetwork, "step"),
    ("targets follow", TwinCritics, "follow"),
    ("draw from the replay", ReplayTrainer, "_minibatch"),
    ("insert and undo", ReplayTrainer, "_without_replay"),
    ("collect", Collector, "collect"),
    ("publish", ReplayTrainer, "policy_blob"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--parts", action="store_true", help="in this process, with a clock around every part")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.parts:
        print(json.dumps(in_parts(arguments.steps, arguments.seed)))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = up_command(PRESET, arguments.seed, Path(folder), fleet=False)
        command += ["--no-goal", "--steps", str(arguments.steps), "--set", f"training.hidden=[{HIDDEN},{HIDDEN}]"]
        command += ["--set", f"training.evaluation_interval_steps={NEVER}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        lines = json_lines(Path(folder) / "run/metrics.jsonl")
        updates = curve.marks([line for line in lines if line.get("update/gradient_steps")])
        print(json.dumps({"steps_per_second": curve.steps_per_second(updates), "steps": updates[-1].steps}))


def in_parts(steps: int, seed: int) -> dict[str, Any]:
    """Figures of the steps that learn; those of the warm-up cost next to nothing and are left out."""
    described = {"algorithm": "sac", "seed": seed, "environment": {"id": "Pendulum-v1"}, "sac": {"replay": REPLAY}}
    config = TrainingConfig.model_validate(described)
    environment = config.environment.model_dump()
    spec = environment_spec(environment)
    trainer = trainer_for(config, policy_for(config, spec), spec, max_policy_lag=0)
    collector = Collector(environment, config.num_envs, collector_seed(seed, "bench", 1))
    spent: dict[str, float] = defaultdict(float)
    for name, owner, method in PARTS:
        setattr(owner, method, _timed(getattr(owner, method), name, spent))
    done, begun, started, cpu = 0, 0, 0.0, 0.0
    while done < steps + WARM_UP:
        if done >= WARM_UP and not started:
            spent.clear()
            begun, started, cpu = done, time.perf_counter(), time.process_time()
        fragment = collector.collect(load_policy(trainer.policy_blob()), config.trajectory_steps)
        done += trainer.update([fragment], 0.0).steps
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    trained = done - begun
    parts = {name: 1e6 * seconds / trained for name, seconds in spent.items()}
    parts["everything else"] = 1e6 * cpu / trained - sum(parts.values())
    return {
        "steps_per_second": trained / wall,
        "steps_per_cpu_second": trained / cpu,
        "cpu_microseconds_per_step": {name: round(each, 1) for name, each in parts.items()},
        "torch_threads": torch.get_num_threads(),
    }


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        # Time of this thread, so that others on the machine do not count.
        started = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[name] += time.thread_time() - started

    return timed


if __name__ == "__main__":
    main()
