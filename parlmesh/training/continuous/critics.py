"""Two critics of continuous actions and their target copies, which follow slowly; the lower value is trusted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parlmesh.policies import PolicySpec
from parlmesh.policies.numpy_networks import parameter_count
from parlmesh.types import Array

from ..shared_step import Share
from .perceptron import Optimised, Perceptron, initial


class Fit(NamedTuple):
    """The results of one step towards the targets, as scalars, and the errors [B]."""

    loss: Tensor
    value: Tensor
    error: Tensor
    norm: Tensor
    errors: Tensor


class TwinCritics:
    """Q1 and Q2 of features and actions, over one vector."""

    def __init__(self, spec: PolicySpec, rng: np.random.Generator, device: torch.device) -> None:
        actions = spec.action.outputs
        sizes = (spec.observation_size + actions, *spec.hidden, 1)
        count = parameter_count(sizes)
        self._features = spec.observation_size
        self._optimised = Optimised(2 * count, device)
        self._optimised.parameters.copy_(torch.cat((initial(sizes, rng), initial(sizes, rng))))
        self._target_parameters = self._optimised.parameters.clone()
        parts = [slice(count), slice(count, 2 * count)]

        def pair(parameters: Tensor) -> list[Perceptron]:
            gradient = self._optimised.gradient
            return [Perceptron(sizes, spec.activation, parameters[part], gradient[part]) for part in parts]

        self._online, self._target = pair(self._optimised.parameters), pair(self._target_parameters)

    def target(self, features: Tensor, actions: Tensor) -> Tensor:
        """Values [2, B] by the target copies."""
        return _values(self._target, torch.cat((features, actions), dim=1))

    def fit(
        self,
        features: Tensor,
        actions: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        learning_rate: float,
        share: Share | None = None,
    ) -> Fit:
        """One step down ½ Σ_i mean(weight · (Q_i − target)²), over the rows of all processes that share it."""
        values = _values(self._online, torch.cat((features, actions), dim=1))
        errors = values - targets
        flow = (errors if weights is None else errors * weights) / len(targets)
        for critic, gradient in zip(self._online, flow, strict=True):
            critic.backward(gradient.unsqueeze(1))
        sizes = errors.abs().mean(dim=0)
        terms = torch.stack((0.5 * (flow * errors).sum(), values.mean(), sizes.mean()))
        if share is not None:
            terms = torch.tensor(share(self._optimised.gradient, terms.tolist(), sizes.cpu().numpy()))
        norm = torch.linalg.vector_norm(self._optimised.gradient)
        self._optimised.step(learning_rate)
        loss, value, error = terms
        return Fit(loss, value, error, norm, sizes)

    def lowest(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """min(Q1, Q2) [B] and its gradient for the actions [B, D]."""
        inputs = torch.cat((features, actions), dim=1)
        values = _values(self._online, inputs)
        first = values[0] <= values[1]
        gradient = torch.empty_like(actions)
        for critic, chosen in zip(self._online, (first, ~first), strict=True):
            # Each row uses only the critic that is lower for it.
            rows = chosen.nonzero()[:, 0]
            ones = torch.ones((len(rows), 1), device=actions.device)
            gradient[rows] = critic.inputs_gradient(ones, self._features, rows)
        return torch.where(first, values[0], values[1]), gradient

    def first(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Q1 [B] and its gradient for the actions [B, D]."""
        critic = self._online[0]
        values = critic.forward(torch.cat((features, actions), dim=1))
        return values[:, 0], critic.inputs_gradient(torch.ones_like(values), self._features)

    def follow(self, rate: float) -> None:
        """Moves the target copies by this fraction."""
        self._target_parameters.lerp_(self._optimised.parameters, rate)

    def tensors(self) -> dict[str, Array]:
        """Copies of all parameters and Adam's state."""
        target = np.array(self._target_parameters.cpu().numpy())
        return {**self._optimised.tensors("critics"), "target_critics": target}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._optimised.restore("critics", tensors)
        self._target_parameters.copy_(torch.from_numpy(np.array(tensors["target_critics"])))


def _values(critics: Sequence[Perceptron], inputs: Tensor) -> Tensor:
    return torch.stack([critic.forward(inputs)[:, 0] for critic in critics])
