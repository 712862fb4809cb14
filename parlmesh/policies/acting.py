"""Choosing actions with numpy: faster than torch for the small networks that actors run. Never imports torch."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .blob import unpack_policy
from .spec import PolicySpec


class Policy(Protocol):
    """What a collector needs of a policy."""

    def act(self, observation: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Sampled actions [E] and their log-probabilities [E] for observations [E, ...]."""

    def greedy(self, observation: Array) -> Array:
        """The likeliest actions [E]."""


class MlpPolicy:
    """A categorical policy on a multilayer perceptron, in float32 as the learner's network."""

    def __init__(self, spec: PolicySpec, weights: Mapping[str, Array]) -> None:
        sizes = spec.layer_sizes
        self._activation: Callable[..., Any] = np.tanh if spec.activation == "tanh" else _relu
        self._size = spec.observation_size
        self._layers = [
            (
                _weight(weights, f"policy.{layer}.weight", (sizes[layer + 1], sizes[layer])).T.copy(),
                _weight(weights, f"policy.{layer}.bias", (sizes[layer + 1],)),
            )
            for layer in range(len(sizes) - 1)
        ]

    def logits(self, observation: Array) -> Array:
        """Unnormalised log-probabilities [E, actions]."""
        hidden = observation.reshape(len(observation), self._size)
        if hidden.dtype != np.float32:
            hidden = hidden.astype(np.float32)
        *inner, (weight, bias) = self._layers
        for inner_weight, inner_bias in inner:
            hidden = hidden @ inner_weight
            hidden += inner_bias
            self._activation(hidden, out=hidden)
        output: Array = hidden @ weight
        output += bias
        return output

    def act(self, observation: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Samples by inverting the cumulative distribution: one random number per environment."""
        logits = self.logits(observation)
        logits -= logits.max(axis=1, keepdims=True)
        probability = np.exp(logits)
        cumulative = np.cumsum(probability, axis=1)
        total = cumulative[:, -1:]
        threshold = rng.random(len(logits), dtype=np.float32)[:, None] * total
        # The last column is left out: rounding must not push an action past the end.
        action = (cumulative[:, :-1] <= threshold).sum(axis=1)
        log_prob = logits[np.arange(len(logits)), action] - np.log(total[:, 0])
        return action, log_prob

    def greedy(self, observation: Array) -> Array:
        """The first of the likeliest actions."""
        action: Array = self.logits(observation).argmax(axis=1)
        return action


def load_policy(blob: bytes) -> Policy:
    """The policy of a blob as served by the learner."""
    return MlpPolicy(*unpack_policy(blob))


def _weight(weights: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    if name not in weights:
        raise InvalidInput(f"policy has no tensor {name}", tensor=name)
    if weights[name].shape != shape or weights[name].dtype != np.float32:
        found = f"{weights[name].dtype}{list(weights[name].shape)}"
        raise InvalidInput(f"policy tensor {name} must be float32{list(shape)}, got {found}", tensor=name)
    return weights[name]


def _relu(values: Array, out: Array) -> Array:
    return np.maximum(values, 0.0, out=out)
