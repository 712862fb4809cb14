"""Perceptrons in torch with gradients by hand, over one flat vector: they skip work that autograd would do."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from parlmesh.policies.numpy_networks import parameter_count
from parlmesh.types import Array

from ..subnormals import flushed_subnormals
from . import products


class Perceptron:
    """Layers whose weights [in, out] and gradients are views of two flat vectors given by the owner.

    A layer's output is written to the same memory each time: a fresh block of that size would first be mapped and
    cleared by the system, which takes longer than the arithmetic of small layers.
    """

    def __init__(self, sizes: Sequence[int], activation: str, parameters: Tensor, gradient: Tensor) -> None:
        self._activation = activation
        self.layers: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._inputs: list[Tensor] = []
        self._written: dict[tuple[str, int], Tensor] = {}
        start = 0
        for inputs, outputs in itertools.pairwise(sizes):
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            for found, flat in ((self.layers, parameters), (self._gradients, gradient)):
                found.append((flat[start:middle].view(inputs, outputs), flat[middle:end]))
            start = end

    def forward(self, features: Tensor) -> Tensor:
        """Outputs [B, out] of features [B, in]; remembers what `backward` needs."""
        hidden, self._inputs = features, []
        for layer, (weight, bias) in enumerate(self.layers[:-1]):
            self._inputs.append(hidden)
            room = self._room("hidden", layer, len(features))
            hidden = products.layer(hidden, weight, bias, self._activation, room)
        self._inputs.append(hidden)
        weight, bias = self.layers[-1]
        return torch.addmm(bias, hidden, weight)

    def backward(self, outputs_gradient: Tensor) -> None:
        """Writes the gradient of the last `forward` for d loss / d outputs [B, out] of its first B rows."""
        flow, count = outputs_gradient, len(outputs_gradient)
        for layer in range(len(self.layers) - 1, -1, -1):
            inputs = self._inputs[layer][:count]
            weight_gradient, bias_gradient = self._gradients[layer]
            found = products.product(inputs.t(), flow, weight_gradient)
            if found is not weight_gradient:
                weight_gradient.copy_(found)
            torch.sum(flow, dim=0, out=bias_gradient)
            if layer:
                flow = self._through(layer, flow, inputs)

    def inputs_gradient(self, outputs_gradient: Tensor, first: int, rows: Tensor | None = None) -> Tensor:
        """d loss / d features [R, in − first] from the `first` on, without gradients of weights.

        `outputs_gradient` [R, out] belongs to these rows of the last `forward`; None = all rows.
        """
        flow = outputs_gradient
        for layer in range(len(self.layers) - 1, 0, -1):
            inputs = self._inputs[layer]
            if rows is not None:
                inputs = torch.index_select(inputs, 0, rows, out=self._room("chosen", layer - 1, len(rows)))
            flow = self._through(layer, flow, inputs)
        return flow @ self.layers[0][0][first:].t()

    def _through(self, layer: int, flow: Tensor, activated: Tensor) -> Tensor:
        """Backwards through a layer's weights and the activation before it."""
        room = self._room("flow", layer - 1, len(flow))
        flow = products.product(flow, self.layers[layer][0].t(), room)
        if self._activation == "tanh":
            return flow.mul_(1.0 - activated * activated)
        # Multiplying by the comparison would convert it to floats first, which takes ten times as long.
        torch.ops.aten.threshold_backward.grad_input(flow, activated, 0.0, grad_input=flow)
        return flow

    def _room(self, what: str, layer: int, rows: int) -> Tensor:
        """Memory for this many rows of a layer's output."""
        weight, _ = self.layers[layer]
        held = self._written.get((what, layer))
        if held is None or len(held) < rows:
            held = self._written[what, layer] = weight.new_empty((rows, weight.shape[1]))
        return held[:rows]


class Optimised:
    """One flat vector of parameters, its gradient and its Adam, fused into one pass."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.parameters = torch.zeros(size, device=device)
        self.gradient = torch.zeros(size, device=device)
        self.parameters.grad = self.gradient
        self._adam = torch.optim.Adam([self.parameters], fused=True)

    def step(self, learning_rate: float) -> None:
        """Steps down the gradient."""
        self._adam.param_groups[0]["lr"] = learning_rate
        with flushed_subnormals():
            self._adam.step()

    def tensors(self, name: str) -> dict[str, Array]:
        """Copies of the parameters and of Adam's state, if it has made a step."""
        found = {name: self.parameters} | {f"{name}.{key}": value for key, value in self._state().items()}
        return {key: np.array(value.cpu().numpy()) for key, value in found.items()}

    def restore(self, name: str, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self.parameters.copy_(torch.from_numpy(np.array(tensors[name])))
        prefix = f"{name}."
        state = {
            key.removeprefix(prefix): torch.from_numpy(np.array(value))
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": {0: state} if state else {}, "param_groups": groups})

    def _state(self) -> dict[str, Tensor]:
        return dict(self._adam.state[self.parameters]) if self.parameters in self._adam.state else {}


def initial(sizes: Sequence[int], rng: np.random.Generator) -> Tensor:
    """Weights and biases of layers, uniform within ±1/√inputs, as torch's own layers start."""
    parts = [
        rng.uniform(-1.0, 1.0, (inputs + 1) * outputs) / np.sqrt(inputs)
        for inputs, outputs in itertools.pairwise(sizes)
    ]
    found = torch.from_numpy(np.concatenate(parts).astype(np.float32))
    assert len(found) == parameter_count(sizes)
    return found
