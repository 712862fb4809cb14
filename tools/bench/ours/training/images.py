"""Processor time per trained step of PPO on images, in one process: the collector and trainer of a serial run."""

import argparse
import json
import time

from learner.config import TrainingConfig
from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed

# stable-baselines3's names for these: n_envs, n_steps, batch_size, n_epochs; CnnPolicy has this network.
SETTINGS = {
    "environment": {"id": "tools.bench.ground.pictures:parlmesh-bench/Pictures-v0"},
    "network": "nature",
    "hidden": [512],
    "activation": "relu",
    "num_envs": 8,
    "trajectory_steps": 128,
    "max_policy_lag": 0,
    "ppo": {
        "minibatch_steps": 256,
        "epochs": 4,
        "target_kl": None,
        "learning_rate": 2.5e-4,
        "normalise_advantages": "minibatch",
        "gradient_norm": 0.5,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=6, help="the first is not measured")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = TrainingConfig.model_validate({**SETTINGS, "seed": arguments.seed})
    environment = config.environment.model_dump()
    shapes = environment_spec(environment)
    trainer = trainer_for(config, policy_for(config, shapes), shapes)
    collector = Collector(environment, config.num_envs, collector_seed(arguments.seed, "actor-0", 1))
    steps, collecting, updating = 0, 0.0, 0.0
    for update in range(arguments.updates):
        before = time.process_time()
        fragment = collector.collect(load_policy(trainer.policy_blob()), config.trajectory_steps)
        between = time.process_time()
        done = trainer.update([fragment], 0.0).steps
        if update:
            steps, collecting = steps + done, collecting + between - before
            updating += time.process_time() - between
    collector.close()
    figures = {"collecting": collecting, "updating": updating, "cpu": collecting + updating}
    print(json.dumps({f"{name}_ms_per_step": round(1e3 * value / steps, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
