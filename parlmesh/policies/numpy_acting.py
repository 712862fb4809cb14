"""Chooses actions with numpy, which is faster than torch for the small networks that actors run."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from parlmesh.algorithms.dqn import dueling
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .activations import ACTIVATIONS
from .bounded_actions import NoisyMean, SquashedGaussian, scale
from .convolutions import CONVOLUTIONS
from .custom_networks import custom_network
from .distributions import Sampler, distribution_for, masked, sample_allowed, squash
from .epsilon_greedy import EpsilonGreedy
from .observation_features import Features
from .policy_file import unpack_policy
from .policy_spec import PolicySpec

# From this many choices on, only the allowed ones are computed.
_WIDE = 256

# From features [E, ...] and the state to outputs [E, outputs] and the next state.
Network = Callable[[Array, Array | None], tuple[Array, Array | None]]


class Choice(NamedTuple):
    """Actions [E, ...], their log-probabilities [E], and the next recurrent state."""

    action: Array
    log_prob: Array
    state: Array | None = None


class Policy(Protocol):
    """The interface of a policy for collectors. `mask` is given for masked environments, `state` for recurrent
    policies."""

    def initial_state(self, num_envs: int) -> Array | None:
        """The recurrent state before the first step; None for policies without memory."""

    def act(
        self, observation: Array, rng: np.random.Generator, mask: Array | None = None, state: Array | None = None
    ) -> Choice:
        """Sampled or exploring actions."""

    def greedy(self, observation: Array, mask: Array | None = None, state: Array | None = None) -> Choice:
        """The likeliest actions, or those with the highest value."""

    def to_environment(self, action: Array) -> Array:
        """Converts an action to what the environment takes."""


class SearchingPolicy(Policy, Protocol):
    """A policy that searches before it acts."""

    target: tuple[Array, Array]
    """The improved policy from its last search: actions [E, K] and their probabilities."""


class NumpyPolicy:
    """A table or a perceptron, with or without memory, with any distribution."""

    def __init__(self, spec: PolicySpec, weights: Mapping[str, Array]) -> None:
        self._spec = spec
        self._features = Features(spec, weights)
        self._network = self._build(spec, weights)
        self._sampler = _sampler(spec, weights)
        self._wide = spec.action.kind == "discrete" and spec.choice == "sample" and spec.action.outputs >= _WIDE
        self._low, self._high = (np.array(bound, np.float32) for bound in (spec.action.low, spec.action.high))

    def initial_state(self, num_envs: int) -> Array | None:
        """Zeros for a recurrent policy."""
        size = self._spec.state_size
        return np.zeros((num_envs, size), np.float32) if size else None

    def outputs(
        self, observation: Array, mask: Array | None = None, state: Array | None = None
    ) -> tuple[Array, Array | None]:
        """Numbers [E, choices or dimensions] that actions are chosen by, forbidden ones masked, and the next state."""
        outputs, state = self._network(self._features(observation), state)
        if self._spec.dueling:
            outputs = dueling(outputs)
        return (outputs if mask is None else masked(outputs, mask)), state

    def act(
        self, observation: Array, rng: np.random.Generator, mask: Array | None = None, state: Array | None = None
    ) -> Choice:
        """Samples from the distribution, or acts greedily except for a share epsilon."""
        if mask is not None and self._wide:
            outputs, state = self.outputs(observation, None, state)
            return Choice(*sample_allowed(outputs, mask, rng), state)
        outputs, state = self.outputs(observation, mask, state)
        action, log_prob = self._sampler.sample(outputs, rng)
        return Choice(action, log_prob, state)

    def greedy(self, observation: Array, mask: Array | None = None, state: Array | None = None) -> Choice:
        """The mode of the distribution."""
        outputs, state = self.outputs(observation, mask, state)
        action = self._sampler.mode(outputs)
        return Choice(action, np.zeros(len(action), np.float32), state)

    def to_environment(self, action: Array) -> Array:
        """Scales, squashes or clips continuous actions to their bounds; leaves others unchanged."""
        if self._spec.action.kind != "continuous":
            return action
        if self._spec.bounded:
            return scale(action, self._low, self._high)
        if self._spec.actions == "clipped":
            return np.clip(action, self._low, self._high)
        return squash(action, self._low, self._high)

    def _build(self, spec: PolicySpec, weights: Mapping[str, Array]) -> Network:
        if spec.network == "tabular":
            return _table(spec, weights)
        return _recurrent(spec, weights) if spec.network == "recurrent" else _perceptron(spec, weights)


def load_policy(blob: bytes) -> NumpyPolicy:
    """The policy in a blob that the learner served."""
    spec, weights = unpack_policy(blob)
    own = custom_network(spec.network) is not None
    if spec.network in CONVOLUTIONS or own:
        # Convolutions in numpy would be slower than importing torch once, and plug-in networks are torch modules.
        from .torch_acting import JudgingPolicy, TorchPolicy

        return JudgingPolicy(spec, weights) if own else TorchPolicy(spec, weights)
    return NumpyPolicy(spec, weights)


def _sampler(spec: PolicySpec, weights: Mapping[str, Array]) -> Sampler:
    if spec.choice != "sample":
        epsilon = float(_weight(weights, "policy.epsilon", (1,))[0])
        if spec.choice == "epsilon_greedy":
            return EpsilonGreedy(epsilon)
        if spec.choice == "squashed":
            return SquashedGaussian(epsilon)
        return NoisyMean(epsilon, float(_weight(weights, "policy.noise", (1,))[0]))
    dimensions = len(spec.action.low)
    log_std = _weight(weights, "policy.log_std", (dimensions,)) if dimensions else np.empty(0, np.float32)
    return distribution_for(spec.action, log_std)


def _table(spec: PolicySpec, weights: Mapping[str, Array]) -> Network:
    table = _weight(weights, "policy.table", (spec.observation_states, spec.action.outputs))
    return lambda states, _: (table[states], None)


def _perceptron(spec: PolicySpec, weights: Mapping[str, Array]) -> Network:
    *inner, (weight, bias) = _layers(weights, "policy", spec.layer_sizes)
    activate = ACTIVATIONS[spec.activation]

    def run(hidden: Array, _: Array | None) -> tuple[Array, Array | None]:
        for inner_weight, inner_bias in inner:
            hidden = hidden @ inner_weight
            hidden += inner_bias
            activate(hidden, hidden)
        outputs = hidden @ weight
        outputs += bias
        return outputs, None

    return run


def _recurrent(spec: PolicySpec, weights: Mapping[str, Array]) -> Network:
    """Layers up to the last hidden one, which is a GRU cell in torch's layout (reset, update, new)."""
    inputs, size = spec.layer_sizes[-3], spec.state_size
    body = _layers(weights, "body", spec.layer_sizes[:-2])
    input_weight = _weight(weights, "memory.weight_ih", (3 * size, inputs)).T.copy()
    state_weight = _weight(weights, "memory.weight_hh", (3 * size, size)).T.copy()
    input_bias = _weight(weights, "memory.bias_ih", (3 * size,))
    state_bias = _weight(weights, "memory.bias_hh", (3 * size,))
    ((head_weight, head_bias),) = _layers(weights, "policy", spec.layer_sizes[-2:])
    activate = ACTIVATIONS[spec.activation]

    def run(hidden: Array, state: Array | None) -> tuple[Array, Array | None]:
        if state is None:
            state = np.zeros((len(hidden), size), np.float32)
        for weight, bias in body:
            hidden = hidden @ weight + bias
            activate(hidden, hidden)
        from_input = hidden @ input_weight + input_bias
        from_state = state @ state_weight + state_bias
        gates = 1.0 / (1.0 + np.exp(-(from_input[:, : 2 * size] + from_state[:, : 2 * size])))
        reset, update = gates[:, :size], gates[:, size:]
        new = np.tanh(from_input[:, 2 * size :] + reset * from_state[:, 2 * size :])
        state = (1.0 - update) * new + update * state
        return state @ head_weight + head_bias, state

    return run


def _layers(weights: Mapping[str, Array], part: str, sizes: tuple[int, ...]) -> list[tuple[Array, Array]]:
    return [
        (
            _weight(weights, f"{part}.{layer}.weight", (sizes[layer + 1], sizes[layer])).T.copy(),
            _weight(weights, f"{part}.{layer}.bias", (sizes[layer + 1],)),
        )
        for layer in range(len(sizes) - 1)
    ]


def _weight(weights: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    if name not in weights:
        raise InvalidInput(f"policy has no tensor {name}", tensor=name)
    if weights[name].shape != shape or weights[name].dtype != np.float32:
        found = f"{weights[name].dtype}{list(weights[name].shape)}"
        raise InvalidInput(f"policy tensor {name} must be float32{list(shape)}, got {found}", tensor=name)
    return weights[name]
