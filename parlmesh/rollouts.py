"""Stepping many environments with a policy: the one loop that actors, serial runs and evaluations share.

Gymnasium's NEXT_STEP autoreset is required: the observation after the last step of an episode is then the true final
one, so values can be bootstrapped from it, and the step that follows only resets and is marked invalid.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from parlmesh.errors import InvalidInput
from parlmesh.policies import Policy
from parlmesh.types import (
    ACTION,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    EnvironmentSpec,
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


def environment_spec(environment: Mapping[str, Any]) -> EnvironmentSpec:
    """Shapes of an environment, read from one that is made and closed."""
    envs = make_environments(environment, 1)
    try:
        observation, action = envs.single_observation_space, envs.single_action_space
        if not isinstance(observation, gymnasium.spaces.Box):
            raise InvalidInput(f"observation space must be a Box, got {observation}", reason="ENVIRONMENT_SPACE")
        if not isinstance(action, gymnasium.spaces.Discrete) or int(action.start) != 0:
            raise InvalidInput(f"action space must be Discrete from 0, got {action}", reason="ENVIRONMENT_SPACE")
        return EnvironmentSpec(observation.shape, str(observation.dtype), int(action.n))
    finally:
        envs.close()


def make_environments(environment: Mapping[str, Any], num_envs: int) -> VectorEnv:
    """`num_envs` copies of {"id": ..., "kwargs": {...}}, in the environment's native vector form where it has one."""
    name, arguments = str(environment.get("id", "")), dict(environment.get("kwargs") or {})
    try:
        native = gymnasium.spec(name).vector_entry_point is not None
        if native:
            envs = gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **arguments)
        else:
            mode = {"autoreset_mode": AutoresetMode.NEXT_STEP}
            envs = gymnasium.make_vec(name, num_envs, vectorization_mode="sync", vector_kwargs=mode, **arguments)
    except (gymnasium.error.Error, TypeError) as error:
        raise InvalidInput(f"environment {name!r} cannot be made: {error}", reason="ENVIRONMENT") from error
    if envs.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        envs.close()
        raise InvalidInput(f"environment {name!r} must reset in the NEXT_STEP mode", reason="ENVIRONMENT")
    return envs


class Collector:
    """Steps its environments from fragment to fragment; episodes go on across them."""

    def __init__(self, environment: Mapping[str, Any], num_envs: int, seed: np.random.SeedSequence) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}")
        environment_seed, action_seed = seed.spawn(2)
        self._envs = make_environments(environment, num_envs)
        self._rng = np.random.default_rng(action_seed)
        self._observation, _ = self._envs.reset(seed=int(environment_seed.generate_state(1)[0]))
        self._ended = np.zeros(num_envs, dtype=np.bool_)
        self._returns = np.zeros(num_envs, dtype=np.float64)
        self._lengths = np.zeros(num_envs, dtype=np.int64)

    def collect(self, policy: Policy, steps: int) -> Fragment:
        """`steps` steps of every environment, acting with one policy."""
        envs, observation = len(self._ended), self._observation
        observations = np.empty((steps + 1, *observation.shape), observation.dtype)
        actions = np.empty((steps, envs), np.int64)
        log_probs = np.empty((steps, envs), np.float32)
        rewards = np.empty((steps, envs), np.float32)
        terminated = np.empty((steps, envs), np.bool_)
        truncated = np.empty((steps, envs), np.bool_)
        valid = np.empty((steps, envs), np.bool_)
        episodes: list[Episode] = []
        observations[0] = observation
        for step in range(steps):
            action, log_prob = policy.act(observation, self._rng)
            observation, reward, ends, cuts, _ = self._envs.step(action)
            observations[step + 1] = observation
            actions[step] = action
            log_probs[step] = log_prob
            rewards[step] = reward
            terminated[step] = ends
            truncated[step] = cuts
            np.logical_not(self._ended, out=valid[step])
            self._ended = self._account(reward, valid[step], ends | cuts, episodes)
        self._observation = observation
        columns = {
            OBSERVATION: observations,
            ACTION: actions,
            LOG_PROB: log_probs,
            REWARD: rewards,
            TERMINATED: terminated,
            TRUNCATED: truncated,
            VALID: valid,
        }
        return Fragment(columns, episodes)

    def close(self) -> None:
        """Frees the environments."""
        self._envs.close()

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
    envs = make_environments(environment, episodes)
    try:
        observation, _ = envs.reset(seed=seed)
        returns = np.zeros(episodes, dtype=np.float64)
        running = np.ones(episodes, dtype=np.bool_)
        for _ in range(_LONGEST_EVALUATION_STEPS):
            observation, reward, ends, cuts, _ = envs.step(policy.greedy(observation))
            returns += np.where(running, reward, 0.0)
            running &= ~(ends | cuts)
            if not running.any():
                return returns
    finally:
        envs.close()
    raise InvalidInput(f"an episode of {environment.get('id')!r} did not end within {_LONGEST_EVALUATION_STEPS} steps")
