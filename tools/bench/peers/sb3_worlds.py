"""stable-baselines3's PPO on one of our worlds; mean reward per step under held-out conditions."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours; the world itself is imported from the sources.

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from parlmesh.worlds.placement.environment import PlacementEnv

HELD_OUT, EPISODES, ENVIRONMENTS = 1_000_000, 32, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    envs = DummyVecEnv([PlacementEnv] * ENVIRONMENTS)
    model = PPO("MultiInputPolicy", envs, n_steps=64, batch_size=512, device="cpu", seed=arguments.seed)
    began = time.perf_counter()
    model.learn(arguments.steps)
    seconds = time.perf_counter() - began
    reward = played(model, HELD_OUT + 1000 * arguments.seed)
    print(json.dumps({"reward": reward, "steps_per_second": arguments.steps / seconds, "train_seconds": seconds}))


def played(model, seed: int) -> float:
    """Plays the episodes that ours are evaluated on: the i-th is seeded by seed + i."""
    total = []
    for episode in range(EPISODES):
        env = PlacementEnv()
        seen, _ = env.reset(seed=seed + episode)
        ended = False
        while not ended:
            action, _ = model.predict(seen, deterministic=True)
            seen, reward, _, ended, _ = env.step(action)
            total.append(reward)
    return float(np.mean(total))


if __name__ == "__main__":
    main()
