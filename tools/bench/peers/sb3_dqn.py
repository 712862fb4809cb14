"""Trained steps per second of stable-baselines3's DQN on CartPole-v1, on the CPU, in one process."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import time

import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

# presets/dqn-cartpole.yaml with the peer's names. Its targets are of one step; ours are summed once, at the insert.
LIKE_OURS = {
    "batch_size": 64,
    "train_freq": (64, "step"),
    "gradient_steps": 64,
    "learning_starts": 1000,
    "buffer_size": 50_000,
    "learning_rate": 2e-3,
    "gamma": 0.98,
    "tau": 0.01,
    "target_update_interval": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--like-ours", action="store_true", help="8 environments and our minibatch and rates")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 is the faster choice here")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    environments = 8 if arguments.like_ours else 1
    settings = LIKE_OURS if arguments.like_ours else {}
    vector = make_vec_env("CartPole-v1", n_envs=environments, seed=arguments.seed)
    model = DQN("MlpPolicy", vector, device="cpu", seed=arguments.seed, **settings)
    started = time.perf_counter()
    model.learn(arguments.steps)
    seconds = time.perf_counter() - started
    gradient_steps = model._n_updates / model.num_timesteps
    result = {
        "steps_per_second": model.num_timesteps / seconds,
        "steps": model.num_timesteps,
        "environments": environments,
        "minibatch": model.batch_size,
        "gradient_steps_per_step": gradient_steps,
        "samples_per_insert": gradient_steps * model.batch_size,
        "torch_threads": torch.get_num_threads(),
        "version": stable_baselines3.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
