"""One training by `parlmesh up`, as a user starts it; prints its figures."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from . import curve

GOAL = 475.0
IN_A_ROW = 3
NEVER = 10**12
PRESETS = Path(__file__).parents[4] / "presets"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serial", action="store_true", help="one process instead of a fleet")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps without a goal; 0 = to the goal")
    parser.add_argument("--preset", default="", help="a file of presets/, without .yaml; empty = the defaults")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        command = up_command(arguments, Path(folder))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_seconds = time.monotonic() - started
        if done.returncode != 0:
            sys.exit(f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        print(json.dumps(summary(Path(folder) / "run", wall_seconds)))


def up_command(arguments: argparse.Namespace, runs_dir: Path) -> list[str]:
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports"]
    command += ["--runs-dir", str(runs_dir), "--run-id", "run", "--seed", str(arguments.seed)]
    command += ["--serial"] if arguments.serial else ["--actors", str(arguments.actors)]
    if arguments.preset:
        command += ["--config", str(PRESETS / f"{arguments.preset}.yaml")]
    if arguments.steps:
        command += ["--no-goal", "--steps", str(arguments.steps)]
        command += ["--set", f"training.evaluation_interval_steps={NEVER}"]
    else:
        command += ["--set", f"training.goal_return={GOAL}", "--set", f"training.goal_evaluations={IN_A_ROW}"]
    return command


def summary(run: Path, wall_seconds: float) -> dict[str, Any]:
    """The figures of a finished run, and the settings that make them comparable."""
    updates = curve.marks(json_lines(run / "metrics.jsonl"))
    result: dict[str, Any] = {"steps_per_second": curve.steps_per_second(updates), "steps": updates[-1].steps}
    evaluations = [
        (int(line["version"]), float(line["mean_return"]))
        for line in json_lines(run / "logs/learner.log")
        if line.get("event") == "evaluated"
    ]
    version = curve.held_version(evaluations, GOAL, IN_A_ROW)
    if version is not None:
        reached = next(update for update in updates if update.version == version)
        result["seconds_to_goal"] = curve.seconds_until(updates, reached)
        result["steps_to_goal"] = reached.steps
    training = yaml.safe_load((run / "learner.effective.yaml").read_text(encoding="utf-8"))["training"]
    return result | {
        "wall_seconds": wall_seconds,
        "evaluations": [round(value, 1) for _, value in evaluations],
        "environments": training["num_envs"],
        "batch": training["num_envs"] * training["trajectory_steps"] * training["batch_trajectories"],
        "minibatch": training["ppo"]["minibatch_steps"],
        "epochs": training["ppo"]["epochs"],
    }


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that are JSON objects."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


if __name__ == "__main__":
    main()
