"""Trained steps per second of `parlmesh up` in worlds that compute, wait or show pictures, at default settings."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from . import curve
from .images import SETTINGS
from .training import NEVER, json_lines

WORLDS = {
    "computing": {"environment": {"id": "tools.bench.ground.slow_worlds:parlmesh-bench/Computing-v0"}},
    "waiting": {"environment": {"id": "tools.bench.ground.slow_worlds:parlmesh-bench/Waiting-v0"}},
    # The network and the batch are stable-baselines3's; how a fleet is run is left to the defaults.
    "pictures": {key: value for key, value in SETTINGS.items() if key != "max_policy_lag"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), required=True)
    parser.add_argument("--actors", type=int, default=0, help="0 = serial: one process instead of a fleet")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of `parlmesh up`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(up_command(arguments, Path(folder)), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        print(json.dumps(summary(Path(folder) / "run")))


def up_command(arguments: argparse.Namespace, folder: Path) -> list[str]:
    settings = folder / "settings.yaml"
    settings.write_text(yaml.safe_dump({"training": WORLDS[arguments.world]}), encoding="utf-8")
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports", "--no-goal"]
    command += ["--config", str(settings), "--runs-dir", str(folder), "--run-id", "run"]
    command += ["--seed", str(arguments.seed), "--steps", str(arguments.steps)]
    command += ["--actors", str(arguments.actors)] if arguments.actors else ["--serial"]
    for key in (f"training.evaluation_interval_steps={NEVER}", "training.evaluation_episodes=1", *arguments.set):
        command += ["--set", key]
    return command


def summary(run: Path) -> dict[str, Any]:
    """The speed from the first update to the last, and the use of the processors in the meantime, including starts."""
    lines = [line for line in json_lines(run / "metrics.jsonl") if "policy/version" in line]
    updates = curve.marks(lines)
    last = updates[-1]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    training = yaml.safe_load((run / "learner.effective.yaml").read_text(encoding="utf-8"))["training"]
    return {
        "steps_per_second": curve.steps_per_second(updates),
        "first_update_seconds": updates[0].time,
        "seconds": last.time,
        "steps": last.steps,
        "cpu_ms_per_step": 1e3 * (used.ru_utime + used.ru_stime) / last.steps,
        "update_seconds": sum(line["update/seconds"] for line in lines) / len(lines),
        "learner_idle_ratio": lines[-1]["experience/learner_idle_ratio"],
        "actor_idle_ratio": lines[-1]["experience/actor_idle_ratio"],
        "environments": training["num_envs"],
        "batch": training["num_envs"] * training["trajectory_steps"] * training["batch_trajectories"],
    }


if __name__ == "__main__":
    main()
