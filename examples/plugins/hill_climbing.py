"""An algorithm: changes all weights at random and keeps what scores at least as well.

parlmesh up --plugin examples/plugins/hill_climbing.py:plugin --set training.algorithm=hill_climbing \\
    --set training.max_policy_lag=0 --set training.hidden=[] --set training.custom.noise=0.5
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.random_state import pack_random_state, restore_random_state
from parlmesh.training.trainer import Update
from parlmesh.types import Array, EnvironmentSpec, Fragment


class HillClimbing:
    """A trainer: updates from whole fragments, a policy to publish, all of its state for checkpoints."""

    def __init__(
        self, policy: PolicySpec, environment: EnvironmentSpec, settings: Mapping[str, Any], rng: np.random.Generator
    ) -> None:
        self._spec, self._rng, self._noise = policy, rng, float(settings.get("noise", 0.5))
        shapes = {
            f"policy.{i}": pair for i, pair in enumerate(zip(policy.layer_sizes[1:], policy.layer_sizes, strict=False))
        }
        self._best: dict[str, Array] = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._best |= {f"{name}.bias": np.zeros(shape[0], np.float32) for name, shape in shapes.items()}
        self._trial, self._score = self._best, -np.inf

    def update(self, fragments: Sequence[Fragment], progress: float) -> Update:
        steps = sum(fragment.valid_steps for fragment in fragments)
        score = steps / (1 + sum(len(fragment.episodes) for fragment in fragments))
        if score >= self._score:
            self._best, self._score = self._trial, score
        self._trial = {
            name: weight + self._noise * self._rng.normal(size=weight.shape).astype(np.float32)
            for name, weight in self._best.items()
        }
        return Update(steps, {"search/score": score, "search/best": self._score}, applied=True)

    def policy_blob(self) -> bytes:
        return pack_policy(self._spec, self._trial)

    def tensors(self) -> dict[str, Array]:
        kept = {f"best.{name}": weight for name, weight in self._best.items()}
        kept |= {f"trial.{name}": weight for name, weight in self._trial.items()}
        return kept | {"score": np.array([self._score]), "rng": pack_random_state(self._rng)}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        self._best = {name: tensors[f"best.{name}"] for name in self._best}
        self._trial = {name: tensors[f"trial.{name}"] for name in self._best}
        self._score = float(tensors["score"][0])
        restore_random_state(self._rng, tensors["rng"])


plugin = Plugin(algorithms={"hill_climbing": HillClimbing})
