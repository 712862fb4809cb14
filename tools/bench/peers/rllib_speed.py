"""Trained steps per second of RLlib's PPO or IMPALA on CartPole-v1 with two environment runners of 8 environments."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import time
import warnings

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

CONFIGS = {"ppo": PPOConfig, "impala": IMPALAConfig}
RUNNERS, ENVIRONMENTS = 2, 8
WARM_UP_ITERATIONS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=sorted(CONFIGS), default="ppo")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        logging_level="ERROR",
        object_store_memory=1 << 30,
        log_to_driver=False,
    )
    config = (
        CONFIGS[arguments.algorithm]()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=RUNNERS, num_envs_per_env_runner=ENVIRONMENTS)
        .learners(num_learners=0)
        .reporting(min_time_s_per_iteration=3)
        .debugging(seed=arguments.seed)
    )
    algorithm = config.build_algo()
    for _ in range(WARM_UP_ITERATIONS):
        report = algorithm.train()
    before, started = sampled(report), time.perf_counter()
    while (seconds := time.perf_counter() - started) < arguments.seconds:
        report = algorithm.train()
        seconds = time.perf_counter() - started
    result = {
        "steps_per_second": (sampled(report) - before) / seconds,
        "mean_return": report["env_runners"].get("episode_return_mean"),
        "environments": RUNNERS * ENVIRONMENTS,
        "batch": config.total_train_batch_size,
        "minibatch": config.minibatch_size,
        "epochs": config.num_epochs,
        "version": ray.__version__,
    }
    print(json.dumps(result), flush=True)
    algorithm.stop()
    ray.shutdown()


def sampled(report) -> int:
    return int(report["env_runners"]["num_env_steps_sampled_lifetime"])


if __name__ == "__main__":
    main()
