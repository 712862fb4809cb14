"""A preset trained on experience of the policy exactly `--lag` versions ago: the return of sampled play in the
meantime.

A fleet's lag varies and is usually below its limit, so older policies are kept and made to act.
"""

import argparse
import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from learner.config import TrainingConfig
from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate, evaluation_seed

PRESETS = Path(__file__).parents[4] / "presets"


@dataclass(slots=True)
class Course:
    """Episodes in the order of their ends, each with the steps that had been trained on before."""

    steps: int
    ends: list[tuple[int, float]] = field(default_factory=list)
    greedy: float = 0.0

    def thirds(self) -> list[float]:
        """Mean return of the episodes that ended in each third of the steps."""
        parts: list[list[float]] = [[], [], []]
        for done, earned in self.ends:
            parts[min(2, 3 * done // self.steps)].append(earned)
        return [float(np.mean(part)) if part else float("nan") for part in parts]


def train(preset: str, settings: dict[str, Any], *, lag: int, seed: int, steps: int) -> Course:
    """Trains for `steps` steps; the oldest of the last `lag` + 1 policies acts."""
    written = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text(encoding="utf-8"))["training"]
    written |= {
        "seed": seed,
        "step_budget": steps,
        "max_policy_lag": lag,
        "ppo": {**written.get("ppo", {}), **settings},
    }
    config = TrainingConfig.model_validate(written)
    environment = config.environment.model_dump()
    shapes = environment_spec(environment)
    trainer = trainer_for(config, policy_for(config, shapes), shapes)
    collector = Collector(
        environment,
        config.num_envs,
        collector_seed(seed, "actor-0", 1),
        reward_discount=config.reward_discount,
    )
    blobs = deque([trainer.policy_blob()], maxlen=lag + 1)
    course, done, updates = Course(steps), 0, 0
    while done < steps:
        fragment = collector.collect(load_policy(blobs[0]), config.trajectory_steps)
        course.ends += [(done, episode.total_reward) for episode in fragment.episodes]
        done += trainer.update([fragment], done / steps).steps
        updates += 1
        blobs.append(trainer.policy_blob())
    collector.close()
    games = evaluation_seed(seed, updates)
    course.greedy = float(evaluate(load_policy(blobs[-1]), environment, config.evaluation_episodes, games).mean())
    return course


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="ppo-acrobot")
    parser.add_argument("--targets", default="vtrace", choices=("gae", "weighted", "vtrace"))
    parser.add_argument("--lag", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=120_000)
    arguments = parser.parse_args()
    settings = {"targets": arguments.targets}
    course = train(arguments.preset, settings, lag=arguments.lag, seed=arguments.seed, steps=arguments.steps)
    first, middle, last = course.thirds()
    figures = {"first_third": first, "middle_third": middle, "last_third": last, "greedy": course.greedy}
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
