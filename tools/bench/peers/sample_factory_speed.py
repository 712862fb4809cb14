"""Trained steps per second of Sample Factory's asynchronous PPO on CartPole-v1: its own average over the whole run."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile

WORKERS, ENVIRONMENTS, ROLLOUT, BATCH = 2, 16, 32, 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "env": "CartPole-v1",
            "algo": "APPO",
            "device": "cpu",
            "num_workers": WORKERS,
            "num_envs_per_worker": ENVIRONMENTS,
            "worker_num_splits": 2,
            "serial_mode": False,
            "async_rl": True,
            "rollout": ROLLOUT,
            "batch_size": BATCH,
            "use_rnn": False,
            "normalize_input": False,
            "decorrelate_envs_on_one_worker": False,
            "with_wandb": False,
            "train_for_env_steps": arguments.steps,
            "seed": arguments.seed,
            "train_dir": folder,
            "experiment": "speed",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "sf_examples.train_gym_env", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    rates = re.findall(r"Collected \{.*?\}, FPS: ([\d.]+)", text)
    if not rates:
        sys.exit(f"Sample Factory named no rate: {text[-500:]}")
    windows = [float(rate) for rate in re.findall(r"Fps is \(10 sec: ([\d.]+)", text)]
    result = {
        "steps_per_second": float(rates[-1]),
        "best_ten_seconds": max(windows, default=None),
        "environments": WORKERS * ENVIRONMENTS,
        "batch": BATCH,
        "minibatch": BATCH,
        "epochs": 1,
        "version": importlib.metadata.version("sample-factory"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
