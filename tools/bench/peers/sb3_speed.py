"""Trained steps per second of stable-baselines3's PPO on CartPole-v1, on the CPU, in one process."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import time

import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

# Our own fleet's default settings, with the peer's names.
LIKE_OURS = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 3e-3,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "max_grad_norm": 1.0,
    "target_kl": 0.03,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--like-ours", action="store_true", help="64 environments and our batch, epochs and rates")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 = torch's own choice")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    environments = 64 if arguments.like_ours else 8
    settings = LIKE_OURS if arguments.like_ours else {}
    vector = make_vec_env("CartPole-v1", n_envs=environments, seed=arguments.seed, vec_env_cls=DummyVecEnv)
    model = PPO("MlpPolicy", vector, device="cpu", seed=arguments.seed, **settings)
    started = time.perf_counter()
    model.learn(arguments.steps)
    seconds = time.perf_counter() - started
    result = {
        "steps_per_second": model.num_timesteps / seconds,
        "steps": model.num_timesteps,
        "environments": environments,
        "batch": environments * model.n_steps,
        "minibatch": model.batch_size,
        "epochs": model.n_epochs,
        "torch_threads": torch.get_num_threads(),
        "version": stable_baselines3.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
