"""Adam (Kingma & Ba 2015, arXiv:1412.6980) on one flat vector, in place."""

import numpy as np

from parlmesh.types import Array


class Adam:
    """First and second moments and the step count; everything else comes with the call."""

    def __init__(self, size: int, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-5) -> None:
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self.mean = np.zeros(size, np.float32)
        self.square = np.zeros(size, np.float32)
        self.steps = 0

    def step(self, parameters: Array, gradient: Array, learning_rate: float) -> None:
        """parameters −= learning_rate · m̂ / (√v̂ + ε)."""
        self.steps += 1
        self.mean += (1.0 - self._beta1) * (gradient - self.mean)
        self.square += (1.0 - self._beta2) * (gradient * gradient - self.square)
        root = np.sqrt(self.square)
        root *= (1.0 - self._beta2**self.steps) ** -0.5
        root += self._epsilon
        np.divide(self.mean, root, out=root)
        root *= learning_rate / (1.0 - self._beta1**self.steps)
        parameters -= root


def clip_norm(gradient: Array, limit: float) -> float:
    """Scales the gradient in place to at most `limit` and returns the norm it had."""
    norm = float(np.sqrt(np.dot(gradient, gradient)))
    if norm > limit:
        gradient *= limit / (norm + 1e-6)
    return norm
