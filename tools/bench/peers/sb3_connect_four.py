"""How sb3-contrib's MaskablePPO plays PettingZoo's connect_four_v3 after `--steps` of self-play, as in PettingZoo's own
tutorial for the two: one environment in which the side to move acts, with the defaults of MaskablePPO.

Shares of 400 greedy games won against a random player and one that wins at once where it can, sides alternating, after
at most two random plies.
"""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import random
import time

import gymnasium
import numpy as np
import pettingzoo.utils
import torch
from pettingzoo.classic import connect_four_v3
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.wrappers import ActionMasker

GAMES, OPENING_PLIES = 400, 2


class Moves(pettingzoo.utils.BaseWrapper, gymnasium.Env):
    """A game as one environment: the next observation is that of the other side."""

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.observation_space = super().observation_space(self.possible_agents[0])["observation"]
        self.action_space = super().action_space(self.possible_agents[0])
        return self.observe(self.agent_selection), {}

    def step(self, action):
        mover = self.agent_selection
        super().step(action)
        ended = self.terminations[mover], self.truncations[mover]
        return self.observe(self.agent_selection), self._cumulative_rewards[mover], *ended, self.infos[mover]

    def observe(self, agent):
        return super().observe(agent)["observation"]

    def action_mask(self):
        return super().observe(self.agent_selection)["action_mask"]


def has_line(stones):
    """Whether stones [6, 7] have four in a line."""
    for board in (stones, stones.T):
        if any(np.logical_and.reduce([board[:, c + k] for k in range(4)]).any() for c in range(board.shape[1] - 3)):
            return True
    for board in (stones, stones[::-1]):
        for row in range(3):
            if any(all(board[row + k, column + k] for k in range(4)) for column in range(4)):
                return True
    return False


def winning(seen, mask):
    """Columns in which the side to move completes a line."""
    found = []
    for column in np.flatnonzero(mask):
        stones = seen[:, :, 0].astype(bool)
        stones[np.flatnonzero(~seen[:, column].any(axis=1))[-1], column] = True
        if has_line(stones):
            found.append(column)
    return found


def won(model, one_ply, rng):
    """The share of games that the model wins."""
    wins = 0
    for game in range(GAMES):
        env = connect_four_v3.env()
        env.reset()
        opening = rng.randint(0, OPENING_PLIES)
        ours = env.possible_agents[game % 2]
        for plies, agent in enumerate(env.agent_iter()):
            observation, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                wins += env._cumulative_rewards[ours] > 0 or env.rewards[ours] > 0
                break
            seen, mask = observation["observation"], observation["action_mask"]
            if plies < opening:
                move = rng.choice(np.flatnonzero(mask).tolist())
            elif agent == ours:
                move = int(model.predict(seen, action_masks=mask, deterministic=True)[0])
            else:
                at_once = winning(seen, mask) if one_ply else []
                move = int(rng.choice(at_once or np.flatnonzero(mask).tolist()))
            env.step(int(move))
    return wins / GAMES


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    env = Moves(connect_four_v3.env())
    env.reset(seed=given.seed)
    env = ActionMasker(env, lambda inner: inner.action_mask())
    model = MaskablePPO(MaskableActorCriticPolicy, env, seed=given.seed, device="cpu")
    started = time.process_time()
    model.learn(given.steps)
    seconds = time.process_time() - started
    rng = random.Random(1)  # noqa: S311
    found = {"steps": model.num_timesteps, "processor_seconds": round(seconds, 1), "seed": given.seed}
    print(json.dumps(found | {"random": won(model, False, rng), "one_ply": won(model, True, rng)}))


if __name__ == "__main__":
    main()
