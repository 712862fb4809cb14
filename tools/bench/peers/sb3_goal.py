"""Steps and training seconds until stable-baselines3's PPO with the zoo's CartPole settings holds 475.

Held means: the first of three evaluations in a row that all reach it, 20 greedy episodes each. Their time is left out.
"""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

GOAL = 475.0
IN_A_ROW = 3
EPISODES = 20
ENVIRONMENTS = 8
EVALUATION_INTERVAL_STEPS = 4096
STEP_BUDGET = 100_000
EVALUATION_SEED_OFFSET = 1_000


def falling(start: float):
    """A learning rate that falls to 0 over the budget."""
    return lambda remaining: remaining * start


class Goal(BaseCallback):
    """Evaluates between two rollouts and ends the training when the goal is held."""

    def __init__(self, vector: VecEnv) -> None:
        super().__init__()
        self.held: tuple[int, float] | None = None
        self.returns: list[float] = []
        self.evaluation_seconds = 0.0
        self._vector = vector
        self._streak: list[tuple[int, float]] = []
        self._next = EVALUATION_INTERVAL_STEPS
        self._started = time.perf_counter()

    def _on_step(self) -> bool:
        return self.held is None

    def _on_rollout_start(self) -> None:
        if self.num_timesteps < self._next:
            return
        self._next += EVALUATION_INTERVAL_STEPS
        began = time.perf_counter()
        mark = (self.num_timesteps, began - self._started - self.evaluation_seconds)
        mean_return = float(evaluate_policy(self.model, self._vector, n_eval_episodes=EPISODES, warn=False)[0])
        self.returns.append(round(mean_return, 1))
        self.evaluation_seconds += time.perf_counter() - began
        self._streak = [*self._streak, mark] if mean_return >= GOAL else []
        if len(self._streak) == IN_A_ROW:
            self.held = self._streak[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    # One thread is the faster choice for minibatches this small.
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS, seed=seed),
        device="cpu",
        seed=seed,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=falling(1e-3),
        clip_range=falling(0.2),
    )
    goal = Goal(make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS, seed=seed + EVALUATION_SEED_OFFSET))
    started = time.perf_counter()
    model.learn(STEP_BUDGET, callback=goal)
    seconds = time.perf_counter() - started - goal.evaluation_seconds
    steps_to_goal, seconds_to_goal = goal.held or (None, None)
    result = {
        "seconds_to_goal": seconds_to_goal,
        "steps_to_goal": steps_to_goal,
        "steps_per_second": model.num_timesteps / seconds,
        "evaluations": goal.returns,
        "environments": ENVIRONMENTS,
        "batch": ENVIRONMENTS * model.n_steps,
        "minibatch": model.batch_size,
        "epochs": model.n_epochs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
