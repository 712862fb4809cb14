"""Train a policy with a fleet, then act with it: no learner, no torch, one file.

python examples/train_and_act.py [FOLDER]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

from parlmesh.policies import load_policy


def train(folder: Path) -> Path:
    """Runs a fleet on this machine until it reaches the goal or the step budget."""
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports", "--no-dashboard"]
    command += ["--run-id", "first", "--runs-dir", str(folder), "--steps", "60000"]
    subprocess.run(command, check=True)  # noqa: S603  # our own program
    (newest,) = sorted(folder.glob("first/models/*.safetensors"))[-1:]
    return newest


def act(model: Path) -> float:
    """Plays one greedy episode."""
    policy = load_policy(model.read_bytes())
    world = gymnasium.make("CartPole-v1")
    observation, _ = world.reset(seed=1)
    total, over = 0.0, False
    while not over:
        choice = policy.greedy(np.asarray(observation)[None])
        observation, reward, terminated, truncated, _ = world.step(policy.to_environment(choice.action)[0])
        total, over = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        kept = train(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
        print(f"one episode with {kept.name}: {act(kept):.0f}")
