"""The interface of a policy in training, and the numpy model. `torch_model` has the autograd model."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from parlmesh.action_masks import unpack_mask
from parlmesh.algorithms.adam import Adam, clip_norm
from parlmesh.algorithms.ppo import PpoTerms, ppo_gradient
from parlmesh.policies import PolicySpec
from parlmesh.policies.distributions import Likelihood, masked
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.types import Array

from .settings.ppo import PpoConfig
from .shared_step import Share


class Memory(NamedTuple):
    """The inputs of a network with memory besides features: where episodes start [T, E], and the first state [E, S]."""

    starts: Array
    state: Array


class Minibatch(NamedTuple):
    """B steps: features and actions [B, ...], all others [B].

    For a network with memory, T steps of B environments: every column is [T, B, ...], and `valid` says which steps
    count. Without memory, steps that do not count are left out before.
    """

    features: Array
    actions: Array
    log_probs: Array
    advantages: Array
    returns: Array
    masks: Array | None = None
    # Values before the update, if new values are kept near them.
    values: Array | None = None
    # Weights of the advantages, if these are normalised by minibatch and weigh differently.
    weights: Array | None = None
    # Actions [B, K] that search found better, and their chances; these are then learnt instead of advantages.
    target_actions: Array | None = None
    target_chances: Array | None = None
    valid: Array | None = None
    memory: Memory | None = None
    # Positions of the steps in the batch, t * E + e, for a model that already holds the batch's features.
    places: Array | None = None

    def rows(self, chosen: Any) -> "Minibatch":
        """Some steps of a minibatch without memory, or all steps that count of one with memory."""
        return Minibatch(
            features=self.features[chosen],
            actions=self.actions[chosen],
            log_probs=self.log_probs[chosen],
            advantages=self.advantages[chosen],
            returns=self.returns[chosen],
            masks=None if self.masks is None else self.masks[chosen],
            values=None if self.values is None else self.values[chosen],
            weights=None if self.weights is None else self.weights[chosen],
            target_actions=None if self.target_actions is None else self.target_actions[chosen],
            target_chances=None if self.target_chances is None else self.target_chances[chosen],
            places=None if self.places is None else self.places[chosen],
        )

    def environments(self, chosen: Any) -> "Minibatch":
        """Some environments of a minibatch with memory."""
        assert self.valid is not None
        assert self.memory is not None
        memory = Memory(self.memory.starts[:, chosen], self.memory.state[chosen])
        return self.rows(np.s_[:, chosen])._replace(valid=self.valid[:, chosen], memory=memory)


class Steps(NamedTuple):
    """Numbers that fall with the used share of the step budget."""

    learning_rate: float
    clip: float
    entropy_coefficient: float


class Model(Protocol):
    """A network with its optimiser."""

    # Set if several processes share every gradient step.
    share: Share | None
    # Whether `step` needs the places of its steps.
    placed: bool

    def values(self, features: Array, memory: Memory | None) -> Array:
        """Values [T, E] of features [T, E, ...]."""

    def judged(self, features: Array, memory: Memory | None, batch: Minibatch) -> tuple[Array, Array]:
        """Values [T + 1, E], and log-probabilities [T, E] of the batch's actions as the policy is now."""

    def step(self, minibatch: Minibatch, steps: Steps) -> tuple[PpoTerms, float]:
        """Makes one gradient step; returns the loss's terms and the gradient's norm before clipping."""

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part, under the names that actors read."""

    def tensors(self) -> dict[str, Array]:
        """Copies of everything that decides the next step."""

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""


class DenseModel:
    """Small perceptrons with gradients written by hand."""

    share: Share | None = None
    placed = False

    def __init__(self, spec: PolicySpec, config: PpoConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._network = DenseActorCritic(spec, rng, initial_log_std=config.initial_log_std)
        self._adam = Adam(len(self._network.parameters), epsilon=config.adam_epsilon)

    def values(self, features: Array, memory: Memory | None) -> Array:
        """Values [T, E] of features [T, E, size]."""
        rows, width, size = features.shape
        return self._network.values(features.reshape(rows * width, size)).reshape(rows, width)

    def judged(self, features: Array, memory: Memory | None, batch: Minibatch) -> tuple[Array, Array]:
        """Values [T + 1, E], and log-probabilities [T, E] of actions [T, E, ...]."""
        grid = batch.log_probs.shape
        flat = batch.rows(np.ones(grid, np.bool_))
        log_probs = self._chosen(self._network.outputs(flat.features), flat).log_prob.reshape(grid)
        return self.values(features, memory), log_probs

    def step(self, minibatch: Minibatch, steps: Steps) -> tuple[PpoTerms, float]:
        """One gradient step by Adam."""
        network = self._network
        (log_prob, entropy), values = self._likelihood(minibatch)
        gradient, terms = ppo_gradient(
            log_prob,
            entropy,
            values,
            minibatch.log_probs,
            minibatch.advantages,
            minibatch.returns,
            clip=steps.clip,
            value_coefficient=self._config.value_coefficient,
            entropy_coefficient=steps.entropy_coefficient,
            old_values=minibatch.values,
            value_clip=self._config.value_clip,
            objective=self._config.objective,
            log_ratio_penalty=self._config.log_ratio_penalty,
        )
        network.backward(network.distribution.gradient(gradient.log_prob, gradient.entropy), gradient.values)
        if self.share is not None:
            terms = PpoTerms(*self.share(network.gradient, terms))
        norm = clip_norm(network.gradient, self._config.gradient_norm)
        self._adam.step(network.parameters, network.gradient, steps.learning_rate)
        return terms, norm

    def _likelihood(self, minibatch: Minibatch) -> tuple[Likelihood, Array]:
        outputs, values = self._network.forward(minibatch.features)
        return self._chosen(outputs, minibatch), values

    def _chosen(self, outputs: Array, minibatch: Minibatch) -> Likelihood:
        if minibatch.masks is not None:
            outputs = masked(outputs, unpack_mask(minibatch.masks, outputs.shape[1]))
        return self._network.distribution.likelihood(outputs, minibatch.actions)

    def named_weights(self) -> dict[str, Array]:
        """Copies of the policy's and the value network's part."""
        return self._network.named_weights()

    def load_named(self, weights: Mapping[str, Array]) -> None:
        """The inverse of `named_weights`; the optimiser starts fresh."""
        self._network.load_named(weights)
        self._adam = Adam(len(self._network.parameters), epsilon=self._config.adam_epsilon)

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
