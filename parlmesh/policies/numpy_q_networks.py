"""A perceptron from features to action values, with hand-written gradients, and its target network."""

import numpy as np

from parlmesh.algorithms.dqn import dueling, dueling_gradient
from parlmesh.types import Array

from .numpy_networks import DenseNetwork, initialise, parameter_count
from .policy_spec import PolicySpec


class DenseQ:
    """Online and target network, each in one flat vector."""

    def __init__(self, spec: PolicySpec, rng: np.random.Generator) -> None:
        sizes = spec.layer_sizes
        self.parameters = np.zeros(parameter_count(sizes), np.float32)
        self.gradient = np.zeros_like(self.parameters)
        self._online = DenseNetwork(sizes, spec.activation, self.parameters, self.gradient)
        initialise(self._online, 0.01, rng)
        self.target_parameters = self.parameters.copy()
        self._target = DenseNetwork(sizes, spec.activation, self.target_parameters, np.empty_like(self.gradient))
        self._dueling = spec.dueling

    def forward(self, features: Array) -> Array:
        """Values [B, A] of features [B, size]; stores what `backward` needs."""
        outputs = self._online.forward(features)
        return dueling(outputs) if self._dueling else outputs

    def target(self, features: Array) -> Array:
        """Values [B, A] of the target network."""
        outputs = self._target.forward(features)
        return dueling(outputs) if self._dueling else outputs

    def backward(self, values_gradient: Array) -> None:
        """Fills `gradient` for d loss / d values [B, A] of the first B rows of the last `forward`."""
        self._online.backward(dueling_gradient(values_gradient) if self._dueling else values_gradient)

    def follow(self, rate: float) -> None:
        """Moves the target network this share of the way to the online one."""
        if rate == 1.0:
            # An exact copy: adding the difference would leave rounding errors.
            self.target_parameters[...] = self.parameters
        else:
            self.target_parameters += rate * (self.parameters - self.target_parameters)

    def named_weights(self) -> dict[str, Array]:
        """Copies of the online network under the names and in the layout that actors and torch use."""
        found: dict[str, Array] = {}
        for layer, (weight, bias) in enumerate(zip(self._online.weights, self._online.biases, strict=True)):
            found[f"policy.{layer}.weight"] = weight.T.copy()
            found[f"policy.{layer}.bias"] = bias.copy()
        return found
