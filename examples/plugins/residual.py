"""A policy network with residual hidden layers. Learner and actors build it from the same specification.

parlmesh up --plugin examples/plugins/residual.py:plugin --set training.network=residual --set training.hidden=[64,64]
"""

import torch
from torch import Tensor, nn

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec


class Residual(nn.Module):
    """Maps features [B, size] to outputs [B, outputs] and values [B]."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        width = spec.hidden[0]
        self.inlet = nn.Linear(spec.observation_size, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in spec.hidden[1:])
        self.policy = nn.Linear(width, spec.action.outputs)
        self.value = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.inlet(features))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return self.policy(hidden), self.value(hidden).squeeze(1)


plugin = Plugin(networks={"residual": Residual})
