"""Processor time per trained step of stable-baselines3's PPO on images, in one process."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tools.bench.ground.pictures import Pictures

SETTINGS = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "max_grad_norm": 0.5}
ENVIRONMENTS = 8


class Marks(BaseCallback):
    """Processor time at the start of every rollout."""

    def __init__(self):
        super().__init__()
        self.times = []
        self.collected = []

    def _on_rollout_start(self):
        self.times.append(time.process_time())

    def _on_rollout_end(self):
        self.collected.append(time.process_time())

    def _on_step(self):
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=6, help="the first is not measured")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    vector = make_vec_env(Pictures, n_envs=ENVIRONMENTS, seed=arguments.seed, vec_env_cls=DummyVecEnv)
    model = PPO("CnnPolicy", vector, device="cpu", seed=arguments.seed, **SETTINGS)
    marks, batch = Marks(), ENVIRONMENTS * SETTINGS["n_steps"]
    model.learn(arguments.updates * batch, callback=marks)
    ended = [*marks.times[1:], time.process_time()]
    steps = batch * (arguments.updates - 1)
    collecting = sum(b - a for a, b in zip(marks.times, marks.collected, strict=True))
    collecting -= marks.collected[0] - marks.times[0]
    total = ended[-1] - marks.times[1]
    figures = {"collecting": collecting, "updating": total - collecting, "cpu": total}
    print(json.dumps({f"{name}_ms_per_step": round(1e3 * value / steps, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
