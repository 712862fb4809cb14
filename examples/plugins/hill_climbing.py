"""An algorithm: changes all weights of a linear policy at random and keeps changes that score at least as well.

parlmesh up --plugin examples/plugins/hill_climbing.py:plugin --set training.algorithm=hill_climbing \\
    --set training.max_policy_lag=0 --set training.custom.noise=0.5
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from parlmesh.algorithms.random_state import pack_random_state, restore_random_state
from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.training.trainer import Update
from parlmesh.types import Array, EnvironmentSpec, Fragment


class HillClimbing:
    """A trainer: updates from whole fragments, a policy to publish, and its whole state for checkpoints."""

    def __init__(self, policy: PolicySpec, _: EnvironmentSpec, settings: Mapping[str, float], rng: Generator) -> None:
        self._policy, self._rng, self._noise = replace(policy, hidden=()), rng, settings.get("noise", 0.5)
        # One row per output: its bias, then its weights.
        self._best = self._trial = np.zeros((policy.action.outputs, 1 + policy.observation_size), np.float32)
        self._score = -np.inf

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        steps = sum(fragment.valid_steps for fragment in fragments)
        score = steps / (1 + sum(len(fragment.episodes) for fragment in fragments))
        if score >= self._score:
            self._best, self._score = self._trial, score
        self._trial = self._best + self._noise * self._rng.standard_normal(self._best.shape, np.float32)
        return Update(steps, {"search/score": score, "search/best": self._score}, applied=True)

    def policy_blob(self) -> bytes:
        return pack_policy(self._policy, {"policy.0.bias": self._trial[:, 0], "policy.0.weight": self._trial[:, 1:]})

    def tensors(self) -> dict[str, Array]:
        weights = {"best": self._best, "trial": self._trial}
        return {**weights, "score": np.array([self._score]), "rng": pack_random_state(self._rng)}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        self._best, self._trial, self._score = tensors["best"], tensors["trial"], tensors["score"].item()
        restore_random_state(self._rng, tensors["rng"])


plugin = Plugin(algorithms={"hill_climbing": HillClimbing})
