"""The torch networks. The only module of the package that imports torch; weight names match `acting` and `dense`."""

import itertools

import torch
from torch import Tensor, nn

from parlmesh.types import Array

from .spec import PolicySpec


class ActorCritic(nn.Module):
    """Separate policy and value perceptrons."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        inner = spec.layer_sizes[:-1]
        self._activation = torch.tanh if spec.activation == "tanh" else torch.relu
        self.policy = _layers((*inner, spec.action_count))
        self.value = _layers((*inner, 1))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, actions] and values [B] of observations [B, size]."""
        return self._run(self.policy, observations), self.values(observations)

    def values(self, observations: Tensor) -> Tensor:
        """Values [B] alone."""
        return self._run(self.value, observations).squeeze(1)

    def policy_weights(self) -> dict[str, Array]:
        """A copy of the policy's part, under the names that actors read."""
        return {f"policy.{name}": weight.detach().numpy().copy() for name, weight in self.policy.state_dict().items()}

    def _run(self, layers: nn.ModuleList, hidden: Tensor) -> Tensor:
        for layer in layers[:-1]:
            hidden = self._activation(layer(hidden))
        output: Tensor = layers[-1](hidden)
        return output


def _layers(sizes: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes))
