"""The interface of a value network in training, and the numpy model. `torch_q_model` has the autograd model."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from parlmesh.algorithms.adam import Adam, clip_norm
from parlmesh.algorithms.dqn import QTerms, double_q_targets, huber_gradient
from parlmesh.policies import PolicySpec
from parlmesh.policies.numpy_q_networks import DenseQ
from parlmesh.types import Array

from .replay_trainer import Minibatch
from .settings.dqn import DqnConfig
from .shared_step import Share


class QStep(NamedTuple):
    """The results of one gradient step; the norm is from before clipping, the errors [B] are for priorities."""

    terms: QTerms
    norm: float
    errors: Array


class QModel(Protocol):
    """A network, its target network and its optimiser."""

    # Set when several processes share every gradient step.
    share: Share | None

    def step(self, minibatch: Minibatch, learning_rate: float) -> QStep:
        """One gradient step."""

    def follow(self, rate: float) -> None:
        """Moves the target network by this fraction."""

    def policy_weights(self) -> dict[str, Array]:
        """A copy of what actors read, without epsilon."""

    def tensors(self) -> dict[str, Array]:
        """Copies of everything that decides the next step."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""


class DenseQModel:
    """Small perceptrons with gradients by hand."""

    share: Share | None = None

    def __init__(self, spec: PolicySpec, config: DqnConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._network = DenseQ(spec, rng)
        self._adam = Adam(len(self._network.parameters))

    def step(self, minibatch: Minibatch, learning_rate: float) -> QStep:
        """One gradient step by Adam."""
        network, config, count = self._network, self._config, len(minibatch.actions)
        next_target = network.target(minibatch.next_features)
        if config.double:
            values = network.forward(np.concatenate((minibatch.features, minibatch.next_features)))
            values, next_online = values[:count], values[count:]
        else:
            values, next_online = network.forward(minibatch.features), next_target
        targets = double_q_targets(
            minibatch.returns, minibatch.discounts, next_online, next_target, minibatch.next_masks
        )
        gradient, errors, terms = huber_gradient(
            values, minibatch.actions, targets, minibatch.weights, threshold=config.huber_threshold
        )
        network.backward(gradient)
        if self.share is not None:
            terms = QTerms(*self.share(network.gradient, terms, errors))
        norm = clip_norm(network.gradient, config.gradient_norm)
        self._adam.step(network.parameters, network.gradient, learning_rate)
        return QStep(terms, norm, errors)

    def follow(self, rate: float) -> None:
        """Moves the target network by this fraction."""
        self._network.follow(rate)

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the weights."""
        return self._network.named_weights()

    def tensors(self) -> dict[str, Array]:
        """Parameters of both networks and Adam's state."""
        return {
            "parameters": self._network.parameters.copy(),
            "target": self._network.target_parameters.copy(),
            "adam.mean": self._adam.mean.copy(),
            "adam.square": self._adam.square.copy(),
            "adam.steps": np.array([self._adam.steps], np.int64),
        }

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._network.parameters[...] = tensors["parameters"]
        self._network.target_parameters[...] = tensors["target"]
        self._adam.mean[...] = tensors["adam.mean"]
        self._adam.square[...] = tensors["adam.square"]
        self._adam.steps = int(tensors["adam.steps"][0])
