"""The learner's torch networks. The only module of the package that imports torch; weight names match `acting`."""

import math

import torch
from torch import Tensor, nn

from parlmesh.types import Array

from .spec import PolicySpec


class ActorCritic(nn.Module):
    """Separate policy and value perceptrons with orthogonal initialisation (Andrychowicz et al. 2021)."""

    def __init__(self, spec: PolicySpec, generator: torch.Generator) -> None:
        super().__init__()
        activation = nn.Tanh if spec.activation == "tanh" else nn.ReLU
        inner = spec.layer_sizes[:-1]
        self.activation = activation()
        self.policy = _layers((*inner, spec.action_count), final_gain=0.01, generator=generator)
        self.value = _layers((*inner, 1), final_gain=1.0, generator=generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, actions] and values [B] of observations [B, size]."""
        return self._run(self.policy, observation), self._run(self.value, observation).squeeze(1)

    def values(self, observation: Tensor) -> Tensor:
        """Values [B] alone."""
        return self._run(self.value, observation).squeeze(1)

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part, under the names that actors read."""
        return {f"policy.{name}": weight.detach().numpy().copy() for name, weight in self.policy.state_dict().items()}

    def _run(self, layers: nn.ModuleList, hidden: Tensor) -> Tensor:
        for layer in layers[:-1]:
            hidden = self.activation(layer(hidden))
        output: Tensor = layers[-1](hidden)
        return output


def _layers(sizes: tuple[int, ...], final_gain: float, generator: torch.Generator) -> nn.ModuleList:
    layers = nn.ModuleList()
    for index in range(len(sizes) - 1):
        layer = nn.Linear(sizes[index], sizes[index + 1])
        gain = final_gain if index == len(sizes) - 2 else math.sqrt(2.0)
        nn.init.orthogonal_(layer.weight, gain=gain, generator=generator)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
    return layers
