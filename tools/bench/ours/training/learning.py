"""One preset trained to its goal by `parlmesh up`, as a user starts it; prints the returns of greedy play."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from . import curve
from .training import PRESETS, json_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", required=True, help="a file of presets/, without .yaml")
    parser.add_argument("--mark", type=float, required=True, help="the return to hold")
    parser.add_argument("--fleet", action="store_true", help="a scheduler, a learner and two actors; else one process")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = up_command(arguments.preset, arguments.seed, Path(folder), fleet=arguments.fleet)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        print(json.dumps(summary(Path(folder) / "run", arguments.mark)))


def up_command(preset: str, seed: int, runs_dir: Path, *, fleet: bool) -> list[str]:
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports"]
    command += ["--runs-dir", str(runs_dir), "--run-id", "run", "--seed", str(seed)]
    command += ["--config", str(PRESETS / f"{preset}.yaml")]
    return [*command, "--actors", "2"] if fleet else [*command, "--serial"]


def summary(run: Path, mark: float) -> dict[str, Any]:
    """The figures of a finished run; without `steps_to_mark` the mark was not held. `training_return` is the mean of
    the last 100 episodes of training, which are sampled: what CleanRL reports."""
    lines = json_lines(run / "metrics.jsonl")
    updates = curve.marks(lines)
    evaluations = [
        (int(line["version"]), float(line["mean_return"]))
        for line in json_lines(run / "logs/learner.log")
        if line.get("event") == "evaluated"
    ]
    training = yaml.safe_load((run / "learner.effective.yaml").read_text(encoding="utf-8"))["training"]
    result: dict[str, Any] = {
        "final_return": evaluations[-1][1],
        "best_return": max(mean_return for _, mean_return in evaluations),
        "training_return": [line["return/episodes"] for line in lines if "return/episodes" in line][-1],
        "steps": updates[-1].steps,
        "steps_per_second": curve.steps_per_second(updates),
        "evaluations": [round(mean_return, 2) for _, mean_return in evaluations],
    }
    version = curve.held_version(evaluations, mark, training["goal_evaluations"])
    if version is not None:
        result["steps_to_mark"] = next(update.steps for update in updates if update.version == version)
    return result


if __name__ == "__main__":
    main()
