"""CartPole-v1 trained from experience of the policy of exactly so many versions ago; what greedy play then earns.

A fleet's lag varies and is usually below its limit, so the older policy is kept at hand and made to act.
"""

import argparse
import json
from collections import deque
from pathlib import Path

import numpy as np
import yaml

from learner.config import TrainingConfig
from learner.trainers import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate, evaluation_seed

PRESET = Path(__file__).parents[3] / "presets/vtrace-cartpole.yaml"
# Evaluations at the end of training that are averaged.
LAST = 5


def returns(lag: int, seed: int, steps: int) -> list[float]:
    """Mean returns of the evaluations, oldest first."""
    preset = yaml.safe_load(PRESET.read_text(encoding="utf-8"))["training"]
    config = TrainingConfig.model_validate({**preset, "seed": seed, "step_budget": steps})
    environment = config.environment.model_dump()
    shapes = environment_spec(environment)
    trainer = trainer_for(config, policy_for(config, shapes), shapes)
    collector = Collector(environment, config.num_envs, collector_seed(seed, "actor-0", 1))
    blobs = deque([trainer.policy_blob()], maxlen=lag + 1)
    found: list[float] = []
    done = version = 0
    while done < steps:
        fragment = collector.collect(load_policy(blobs[0]), config.fragment_steps)
        done += trainer.update([fragment], done / steps).steps
        version += 1
        blobs.append(trainer.policy_blob())
        if done >= config.evaluation_interval_steps * (len(found) + 1):
            games = evaluation_seed(seed, version)
            earned = evaluate(load_policy(blobs[-1]), environment, config.evaluation_episodes, games)
            found.append(float(earned.mean()))
    collector.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lag", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150_000)
    arguments = parser.parse_args()
    found = returns(arguments.lag, arguments.seed, arguments.steps)
    print(json.dumps({"final_return": float(np.mean(found[-LAST:])), "evaluations": [round(one, 1) for one in found]}))


if __name__ == "__main__":
    main()
