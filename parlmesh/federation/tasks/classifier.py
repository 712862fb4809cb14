"""Perceptron classifiers, trained by gradient descent in numpy: small enough for a thousand nodes."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from parlmesh.policies.numpy_networks import DenseNetwork
from parlmesh.types import Array


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""

    def __init__(self, learning_rate: float, weight_decay: float) -> None:
        self._learning_rate, self._decay = np.float32(learning_rate), np.float32(1.0 - learning_rate * weight_decay)
        self._count = 0
        self._mean = self._square = np.zeros(0, np.float32)

    def step(self, parameters: Array, gradient: Array) -> None:
        """Updates the parameters in place."""
        if not self._count:
            self._mean, self._square = np.zeros_like(gradient), np.zeros_like(gradient)
        self._count += 1
        self._mean += np.float32(0.1) * (gradient - self._mean)
        self._square += np.float32(0.001) * (gradient * gradient - self._square)
        mean, square = self._mean / (1.0 - 0.9**self._count), self._square / (1.0 - 0.999**self._count)
        parameters *= self._decay
        parameters -= self._learning_rate * mean / (np.sqrt(square) + np.float32(1e-8))


class Classifier:
    """Layers `sizes` with ReLU between them and softmax at the end. Without a hidden layer: logistic regression."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        count = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))
        self._parameters = np.zeros(count, np.float32)
        self._gradient = np.zeros(count, np.float32)
        self._network = DenseNetwork(sizes, "relu", self._parameters, self._gradient)

    def first(self, rng: np.random.Generator) -> dict[str, Array]:
        """He initialisation; the last layer starts at zero."""
        for layer, weight in enumerate(self._network.weights):
            scale = np.sqrt(2.0 / len(weight)) if layer < len(self._network.weights) - 1 else 0.0
            weight[...] = scale * rng.standard_normal(weight.shape)
        return self.tensors()

    def load(self, tensors: Mapping[str, Array]) -> None:
        """Copies a model's tensors in."""
        for layer, (weight, bias) in enumerate(zip(self._network.weights, self._network.biases, strict=True)):
            weight[...] = tensors[f"{layer}.weight"]
            bias[...] = tensors[f"{layer}.bias"]

    def tensors(self) -> dict[str, Array]:
        """A copy of the model: weights [in, out], biases [out]."""
        found: dict[str, Array] = {}
        for layer, (weight, bias) in enumerate(zip(self._network.weights, self._network.biases, strict=True)):
            found[f"{layer}.weight"], found[f"{layer}.bias"] = weight.copy(), bias.copy()
        return found

    def train(
        self,
        inputs: Array,
        labels: Array,
        *,
        epochs: int,
        batch: int,
        learning_rate: float,
        proximal: float,
        rng: np.random.Generator,
        check: Callable[[], None],
        adamw: AdamW | None = None,
        steps: int = 0,
        seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> float:
        """Trains for some epochs of minibatches (0 = the whole set at once); returns the last epoch's mean loss.

        `steps` replaces epochs. Training stops after `seconds` (0 = never).

        FedProx (Li et al. 2020, arXiv:1812.06127) adds proximal/2 · |w − w₀|² to the loss, where w₀ is the initial
        model; 0 is FedAvg.
        """
        start = self._parameters.copy() if proximal else None
        size = batch or len(labels)
        left = steps or epochs * -(-len(labels) // size)
        deadline = clock() + seconds if seconds else None
        loss = 0.0
        while left > 0:
            check()
            order = rng.permutation(len(labels)) if size < len(labels) else np.arange(len(labels))
            total, seen = 0.0, 0
            for begin in range(0, len(labels), size):
                rows = order[begin : begin + size]
                total += self._step(inputs[rows], labels[rows]) * len(rows)
                seen += len(rows)
                if start is not None:
                    self._gradient += np.float32(proximal) * (self._parameters - start)
                if adamw is not None:
                    adamw.step(self._parameters, self._gradient)
                else:
                    self._parameters -= np.float32(learning_rate) * self._gradient
                left -= 1
                if deadline is not None and clock() >= deadline:
                    left = 0
                if left <= 0:
                    break
            loss = total / seen
        return loss

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, float]:
        """Mean loss and accuracy."""
        log_probs = _log_softmax(self._network.forward(inputs))
        loss = -float(log_probs[np.arange(len(labels)), labels].mean())
        return loss, float((log_probs.argmax(axis=1) == labels).mean())

    def _step(self, inputs: Array, labels: Array) -> float:
        log_probs = _log_softmax(self._network.forward(inputs))
        flowing = np.exp(log_probs)
        rows = np.arange(len(labels))
        flowing[rows, labels] -= 1.0
        flowing /= len(labels)
        self._network.backward(flowing)
        return -float(log_probs[rows, labels].mean())


def _log_softmax(outputs: Array) -> Array:
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
