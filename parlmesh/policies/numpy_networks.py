"""Perceptrons with hand-written gradients in numpy: for small networks, autograd costs more than the arithmetic.

`torch_networks.py` is the same function in torch; a test compares the two. docs/decisions/0003 has measurements.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from parlmesh.types import Array

from .activations import ACTIVATIONS
from .distributions import distribution_for
from .policy_spec import PolicySpec


class DenseNetwork:
    """Layers whose weights and gradients are views of two flat float32 vectors that the owner provides."""

    def __init__(self, sizes: Sequence[int], activation: str, parameters: Array, gradient: Array) -> None:
        self._activate = ACTIVATIONS[activation]
        self._tanh = activation == "tanh"
        self.weights: list[Array] = []
        self.biases: list[Array] = []
        self._weight_gradients: list[Array] = []
        self._bias_gradients: list[Array] = []
        self._inputs: list[Array] = []
        start = 0
        for inputs, outputs in itertools.pairwise(sizes):
            weight, bias = slice(start, start + inputs * outputs), inputs * outputs + start
            self.weights.append(parameters[weight].reshape(inputs, outputs))
            self._weight_gradients.append(gradient[weight].reshape(inputs, outputs))
            self.biases.append(parameters[bias : bias + outputs])
            self._bias_gradients.append(gradient[bias : bias + outputs])
            start = bias + outputs

    def forward(self, observations: Array) -> Array:
        """Outputs [B, out] of observations [B, in]; stores what `backward` needs."""
        hidden, last = observations, len(self.weights) - 1
        self._inputs = []
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            self._inputs.append(hidden)
            hidden = hidden @ weight
            hidden += bias
            if layer < last:
                hidden = self._activate(hidden, hidden)
        return hidden

    def backward(self, output_gradient: Array) -> None:
        """Writes the gradient of the last `forward` for d loss / d outputs [B, out] of its first B rows."""
        flowing, ones = output_gradient, np.ones(len(output_gradient), output_gradient.dtype)
        for layer in range(len(self.weights) - 1, -1, -1):
            inputs = self._inputs[layer][: len(flowing)]
            np.matmul(inputs.T, flowing, out=self._weight_gradients[layer])
            # A product with ones sums rows faster than np.sum.
            np.matmul(ones, flowing, out=self._bias_gradients[layer])
            if layer:
                flowing = flowing @ self.weights[layer].T
                if self._tanh:
                    slope = inputs * inputs
                    flowing *= np.subtract(1.0, slope, out=slope)
                else:
                    flowing *= inputs > 0.0


class DenseActorCritic:
    """Separate policy and value perceptrons, and the deviations of continuous actions, in one flat vector."""

    def __init__(self, spec: PolicySpec, rng: np.random.Generator, *, initial_log_std: float = 0.0) -> None:
        policy_sizes, value_sizes = spec.layer_sizes, (*spec.layer_sizes[:-1], 1)
        policy_end = parameter_count(policy_sizes)
        value_end = policy_end + parameter_count(value_sizes)
        self.parameters = np.zeros(value_end + len(spec.action.low), np.float32)
        self.gradient = np.zeros_like(self.parameters)
        self._policy, self._value = (
            DenseNetwork(sizes, spec.activation, self.parameters[part], self.gradient[part])
            for sizes, part in ((policy_sizes, slice(policy_end)), (value_sizes, slice(policy_end, value_end)))
        )
        self._log_std = self.parameters[value_end:]
        self._log_std[...] = initial_log_std
        self.distribution = distribution_for(spec.action, self._log_std, self.gradient[value_end:])
        initialise(self._policy, 0.01, rng)
        initialise(self._value, 1.0, rng)

    def forward(self, features: Array) -> tuple[Array, Array]:
        """Outputs [B, outputs] and values [B] of features [B, size]."""
        return self._policy.forward(features), self.values(features)

    def outputs(self, features: Array) -> Array:
        """Only the outputs [B, outputs]."""
        return self._policy.forward(features)

    def values(self, features: Array) -> Array:
        """Only the values [B]."""
        return self._value.forward(features)[:, 0]

    def backward(self, outputs_gradient: Array, values_gradient: Array) -> None:
        """Fills `gradient` for the last `forward`; the distribution writes its own part."""
        self._policy.backward(outputs_gradient)
        self._value.backward(values_gradient[:, None])

    def named_weights(self) -> dict[str, Array]:
        """Copies under the names and in the layout that actors and torch use: weight [out, in], bias [out]."""
        found: dict[str, Array] = {}
        for part, network in (("policy", self._policy), ("value", self._value)):
            for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
                found[f"{part}.{layer}.weight"] = weight.T.copy()
                found[f"{part}.{layer}.bias"] = bias.copy()
        if self._log_std.size:
            found["policy.log_std"] = self._log_std.copy()
        return found

    def load_named(self, weights: Mapping[str, Array]) -> None:
        """The inverse of `named_weights`."""
        for part, network in (("policy", self._policy), ("value", self._value)):
            for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
                weight[...] = weights[f"{part}.{layer}.weight"].T
                bias[...] = weights[f"{part}.{layer}.bias"]
        if self._log_std.size:
            self._log_std[...] = weights["policy.log_std"]


def parameter_count(sizes: Sequence[int]) -> int:
    """Number of weights and biases of layers with these sizes."""
    return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))


def initialise(network: DenseNetwork, final_gain: float, rng: np.random.Generator) -> None:
    """Orthogonal weights, zero biases (Andrychowicz et al. 2021, arXiv:2006.05990)."""
    for layer, weight in enumerate(network.weights):
        gain = final_gain if layer == len(network.weights) - 1 else np.sqrt(2.0)
        tall = rng.standard_normal((max(weight.shape), min(weight.shape)))
        orthogonal, triangular = np.linalg.qr(tall)
        orthogonal *= np.sign(np.diag(triangular))
        weight[...] = gain * (orthogonal if weight.shape[0] >= weight.shape[1] else orthogonal.T)
