"""The policy of continuous actions in training, and how its weights reach actors, which use numpy."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from parlmesh.policies import PolicySpec
from parlmesh.policies.numpy_networks import parameter_count
from parlmesh.types import Array

from ..shared_step import Share
from .perceptron import Optimised, Perceptron, initial


class PolicyNetwork:
    """Maps features to the outputs that actions are chosen from."""

    def __init__(self, spec: PolicySpec, rng: np.random.Generator, device: torch.device) -> None:
        sizes = spec.layer_sizes
        self._optimised = Optimised(parameter_count(sizes), device)
        self.parameters = self._optimised.parameters
        self.parameters.copy_(initial(sizes, rng))
        self._network = Perceptron(sizes, spec.activation, self.parameters, self._optimised.gradient)

    def forward(self, features: Tensor) -> Tensor:
        """Outputs [B, outputs] of features [B, size]."""
        return self._network.forward(features)

    def step(
        self, outputs_gradient: Tensor, learning_rate: float, share: Share | None = None, terms: Sequence[float] = ()
    ) -> Sequence[float]:
        """Steps down the gradient of the last `forward`, given d loss / d outputs of its first rows; returns the terms
        of all processes that share the step."""
        self._network.backward(outputs_gradient)
        if share is not None:
            terms = share(self._optimised.gradient, terms)
        self._optimised.step(learning_rate)
        return terms

    def policy_weights(self) -> dict[str, Array]:
        """Copies under the names and in the layout that actors read."""
        found: dict[str, Array] = {}
        for layer, (weight, bias) in enumerate(self._network.layers):
            found[f"policy.{layer}.weight"] = np.ascontiguousarray(weight.cpu().numpy().T)
            found[f"policy.{layer}.bias"] = np.array(bias.cpu().numpy())
        return found

    def tensors(self) -> dict[str, Array]:
        """Copies of the parameters and Adam's state."""
        return self._optimised.tensors("actor")

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._optimised.restore("actor", tensors)
