"""Stepping many environments with a policy: the one loop that actors, serial runs and evaluations share."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from parlmesh.environments import Environments
from parlmesh.errors import InvalidInput
from parlmesh.policies import Policy
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    STATE,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Episode,
    Fragment,
)

# Far beyond any registered time limit; an environment that never ends must not hang an evaluation.
_LONGEST_EVALUATION_STEPS = 100_000


def collector_seed(run_seed: int, actor_id: str, incarnation: int, slot: int = 0) -> np.random.SeedSequence:
    """A stream of its own for every slot of every life of every actor: a restarted actor never repeats games."""
    actor = int.from_bytes(hashlib.sha256(actor_id.encode()).digest()[:8], "little")
    return np.random.SeedSequence([run_seed, actor, incarnation, slot])


def evaluation_seed(run_seed: int, version: int) -> int:
    """Other games for every version, the same wherever it is evaluated."""
    return int(np.random.SeedSequence([run_seed, version]).generate_state(1)[0])


class Collector:
    """Steps its environments from fragment to fragment; episodes go on across them."""

    def __init__(self, environment: Mapping[str, Any], num_envs: int, seed: np.random.SeedSequence) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}")
        environment_seed, action_seed = seed.spawn(2)
        self._envs = Environments(environment, num_envs)
        self._rng = np.random.default_rng(action_seed)
        self._seen = self._envs.reset(int(environment_seed.generate_state(1)[0]))
        self._state: Array | None = None
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)

    def collect(self, policy: Policy, steps: int) -> Fragment:
        """`steps` steps of every environment, acting with one policy."""
        seen = self._seen
        state = self._state if self._state is not None else policy.initial_state(len(self._ended))
        columns = self._columns(steps, state)
        masks = columns.get(ACTION_MASK)
        observations, actions, log_probs = columns[OBSERVATION], columns[ACTION], columns[LOG_PROB]
        episodes: list[Episode] = []
        for step in range(steps):
            action, log_prob, state = policy.act(seen.observation, self._rng, seen.mask, state)
            seen, reward, terminated, truncated = self._envs.step(policy.to_environment(action))
            observations[step + 1] = seen.observation
            actions[step] = action
            log_probs[step] = log_prob
            columns[REWARD][step] = reward
            columns[TERMINATED][step] = terminated
            columns[TRUNCATED][step] = truncated
            valid = columns[VALID][step]
            np.logical_not(self._ended, out=valid)
            if masks is not None:
                masks[step + 1] = seen.mask
            if state is not None:
                # What was reset in this step starts its episode without memory.
                state = np.where(valid[:, None], state, np.float32(0.0))
            self._ended = self._account(reward, valid, terminated | truncated, episodes)
        self._seen, self._state = seen, state
        return Fragment(columns, episodes)

    def close(self) -> None:
        """Frees the environments."""
        self._envs.close()

    def _columns(self, steps: int, state: Array | None) -> dict[str, Array]:
        """Room for a fragment; the rows before the first step are filled in."""
        seen, action, grid = self._seen, self._envs.spec.action, (steps, len(self._ended))
        columns = {
            OBSERVATION: np.empty((steps + 1, *seen.observation.shape), seen.observation.dtype),
            ACTION: np.empty((*grid, *action.shape), action.dtype),
            LOG_PROB: np.empty(grid, np.float32),
            REWARD: np.empty(grid, np.float32),
            TERMINATED: np.empty(grid, np.bool_),
            TRUNCATED: np.empty(grid, np.bool_),
            VALID: np.empty(grid, np.bool_),
        }
        columns[OBSERVATION][0] = seen.observation
        if seen.mask is not None:
            columns[ACTION_MASK] = np.empty((steps + 1, *seen.mask.shape), np.bool_)
            columns[ACTION_MASK][0] = seen.mask
        if state is not None:
            columns[STATE] = state.copy()
        return columns

    def _account(self, reward: Array, valid: Array, ended: Array, episodes: list[Episode]) -> Array:
        self._returns += reward
        self._lengths += valid
        if ended.any():
            for index in np.flatnonzero(ended):
                episodes.append(Episode(float(self._returns[index]), int(self._lengths[index])))
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
        return ended


def evaluate(policy: Policy, environment: Mapping[str, Any], episodes: int, seed: int) -> Array:
    """Returns [episodes] of greedy play: one whole episode in each environment, so that short ones count no more."""
    envs = Environments(environment, episodes)
    try:
        seen, state = envs.reset(seed), policy.initial_state(episodes)
        returns = np.zeros(episodes, dtype=np.float64)
        running = np.ones(episodes, dtype=np.bool_)
        for _ in range(_LONGEST_EVALUATION_STEPS):
            action, _, state = policy.greedy(seen.observation, seen.mask, state)
            seen, reward, terminated, truncated = envs.step(policy.to_environment(action))
            returns += np.where(running, reward, 0.0)
            running &= ~(terminated | truncated)
            if not running.any():
                return returns
    finally:
        envs.close()
    raise InvalidInput(f"an episode of {environment.get('id')!r} did not end within {_LONGEST_EVALUATION_STEPS} steps")
