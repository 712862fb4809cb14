"""What a trainer needs of a policy in training, and the numpy one. `torch_model` has the one for autograd."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from parlmesh.algorithms.adam import Adam, clip_norm
from parlmesh.algorithms.ppo import PpoTerms, ppo_gradient
from parlmesh.policies import PolicySpec
from parlmesh.policies.dense import DenseActorCritic
from parlmesh.types import Array

from .config import PpoConfig


class Minibatch(NamedTuple):
    """B steps: observations [B, size], all others [B]."""

    observations: Array
    actions: Array
    log_probs: Array
    advantages: Array
    returns: Array


class Model(Protocol):
    """A network with its optimiser."""

    def values(self, observations: Array) -> Array:
        """Values [B] of observations [B, size]."""

    def step(self, minibatch: Minibatch, learning_rate: float) -> tuple[PpoTerms, float]:
        """One gradient step; the loss's terms and the gradient's norm before it was clipped."""

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part, under the names that actors read."""

    def tensors(self) -> dict[str, Array]:
        """Copies of all that decides the next step."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""


class DenseModel:
    """Small perceptrons with gradients by hand."""

    def __init__(self, spec: PolicySpec, config: PpoConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._network = DenseActorCritic(spec, rng)
        self._adam = Adam(len(self._network.parameters))

    def values(self, observations: Array) -> Array:
        """Values [B] of observations [B, size]."""
        return self._network.values(observations)

    def step(self, minibatch: Minibatch, learning_rate: float) -> tuple[PpoTerms, float]:
        """One gradient step by Adam."""
        logits, values = self._network.forward(minibatch.observations)
        logits_gradient, values_gradient, terms = ppo_gradient(
            logits,
            values,
            minibatch.actions,
            minibatch.log_probs,
            minibatch.advantages,
            minibatch.returns,
            clip=self._config.clip,
            value_coefficient=self._config.value_coefficient,
            entropy_coefficient=self._config.entropy_coefficient,
        )
        self._network.backward(logits_gradient, values_gradient)
        norm = clip_norm(self._network.gradient, self._config.gradient_norm)
        self._adam.step(self._network.parameters, self._network.gradient, learning_rate)
        return terms, norm

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part."""
        return {name: weight for name, weight in self._network.named_weights().items() if name.startswith("policy.")}

    def tensors(self) -> dict[str, Array]:
        """Parameters and Adam's state."""
        return {
            "parameters": self._network.parameters.copy(),
            "adam.mean": self._adam.mean.copy(),
            "adam.square": self._adam.square.copy(),
            "adam.steps": np.array([self._adam.steps], np.int64),
        }

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._network.parameters[...] = tensors["parameters"]
        self._adam.mean[...] = tensors["adam.mean"]
        self._adam.square[...] = tensors["adam.square"]
        self._adam.steps = int(tensors["adam.steps"][0])
