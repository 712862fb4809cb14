"""Train a policy with a fleet, then act with it; acting needs one file and no torch.

python examples/train_and_act.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import gymnasium

import parlmesh


def train(folder: Path) -> Path:
    """Runs a fleet on this machine until the step budget is used, and keeps the best policy."""
    run = parlmesh.train("CartPole-v1", steps=60_000, runs_dir=folder, run_id="first")
    return run.policy.save(folder / "best.safetensors")


def act(model: Path) -> float:
    """Plays one greedy episode."""
    policy = parlmesh.load_policy(model)
    world = gymnasium.make("CartPole-v1")
    observation, _ = world.reset(seed=1)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = world.step(policy.act(observation))
        total, over = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        kept = train(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
        print(f"one episode with {kept.name}: {act(kept):.0f}")
