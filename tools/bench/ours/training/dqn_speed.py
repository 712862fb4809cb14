"""Trained steps per second of `parlmesh up` with the DQN preset for CartPole-v1."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from . import curve
from .learning import up_command
from .training import NEVER, json_lines

PRESET = "dqn-cartpole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--fleet", action="store_true", help="a scheduler, a learner and two actors; else one process")
    parser.add_argument("--minibatch", type=int, default=64, help="samples per insert stay as they are")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = up_command(PRESET, arguments.seed, Path(folder), fleet=arguments.fleet)
        command += ["--no-goal", "--steps", str(arguments.steps)]
        command += ["--set", f"training.evaluation_interval_steps={NEVER}"]
        command += ["--set", f"training.dqn.minibatch_steps={arguments.minibatch}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        print(json.dumps(summary(Path(folder) / "run")))


def summary(run: Path) -> dict[str, Any]:
    """Figures of the updates that learned; those before the replay was filled cost next to nothing and are left out."""
    lines = [line for line in json_lines(run / "metrics.jsonl") if line.get("update/gradient_steps")]
    updates = curve.marks(lines)
    training = yaml.safe_load((run / "learner.effective.yaml").read_text(encoding="utf-8"))["training"]
    steps = updates[-1].steps - updates[0].steps
    gradient_steps = sum(line["update/gradient_steps"] for line in lines[1:]) / steps
    return {
        "steps_per_second": curve.steps_per_second(updates),
        "steps": updates[-1].steps,
        "environments": training["num_envs"],
        "minibatch": training["dqn"]["minibatch_steps"],
        "gradient_steps_per_step": gradient_steps,
        "samples_per_insert": gradient_steps * training["dqn"]["minibatch_steps"],
    }


if __name__ == "__main__":
    main()
