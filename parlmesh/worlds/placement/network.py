"""A policy network for Placement-v3 that applies the same weights to every pair of a node and a deployment.

All pairs share what it learns about one, so it needs far fewer steps than a perceptron over the whole cluster, and its
size does not grow with the cluster. The plug-in `worlds` provides it as `placement`.
"""

import torch
from torch import Tensor, nn

from parlmesh.errors import InvalidInput
from parlmesh.policies import PolicySpec

# Features per node, per deployment and for the time in an observation.
NODE_FACTS, DEPLOYMENT_FACTS, TIME_FACTS = 6, 5, 2


class PlacementNetwork(nn.Module):
    """Takes features as `observed` joins them, sorted by name: deployments, distance, nodes, pods, time."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.deployments = len(spec.action.sizes)
        self.nodes = (spec.action.sizes[0] - 1) // 3
        self._sizes = [
            self.deployments * DEPLOYMENT_FACTS,
            self.nodes * self.deployments,
            self.nodes * NODE_FACTS,
            self.nodes * self.deployments,
            TIME_FACTS,
        ]
        if sum(self._sizes) != spec.observation_size or set(spec.action.sizes) != {1 + 3 * self.nodes}:
            raise InvalidInput("the network placement only fits parlmesh/Placement-v3", reason="POLICY_SPEC")
        if len(spec.hidden) < 2:
            raise InvalidInput(f"the network placement needs two hidden layers, got {list(spec.hidden)}")
        first, last = spec.hidden[0], spec.hidden[-1]
        # The first layer over a pair's features, split so that parts constant along an axis are computed once.
        self.of_node = nn.Linear(NODE_FACTS, first)
        self.of_deployment = nn.Linear(DEPLOYMENT_FACTS, first)
        self.of_time = nn.Linear(TIME_FACTS, first)
        self.of_pair = nn.Linear(2, first)
        # The second layer adds the node's other pairs, the deployment's other pairs, and the whole cluster.
        self.pair = nn.Linear(first, last)
        self.by_node = nn.Linear(first, last)
        self.by_deployment = nn.Linear(first, last)
        self.whole = nn.Linear(first, last)
        self.verbs = nn.Linear(last, 3)
        self.nothing = nn.Linear(last, 1)
        self.critic = nn.Linear(last, last)
        self.value = nn.Linear(last, 1)
        for head in (self.verbs, self.nothing):
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[B, size] to logits [B, D · (1 + 3N)] and values [B]."""
        batch, nodes, deployments = len(features), self.nodes, self.deployments
        facts, distance, node, pods, time = torch.split(features, self._sizes, dim=1)
        both = torch.stack((distance, pods), dim=2).reshape(batch, nodes, deployments, 2)
        hidden = torch.relu(
            self.of_pair(both)
            + self.of_node(node.reshape(batch, nodes, 1, NODE_FACTS))
            + self.of_deployment(facts.reshape(batch, 1, deployments, DEPLOYMENT_FACTS))
            + self.of_time(time)[:, None, None]
        )
        by_deployment = hidden.mean(dim=1, keepdim=True)
        hidden = torch.relu(
            self.pair(hidden)
            + self.by_node(hidden.mean(dim=2, keepdim=True))
            + self.by_deployment(by_deployment)
            + self.whole(by_deployment.mean(dim=2, keepdim=True))
        )
        verbs = self.verbs(hidden).permute(0, 2, 3, 1).reshape(batch, deployments, 3 * nodes)
        nothing = self.nothing(hidden.mean(dim=1))
        values = self.value(torch.relu(self.critic(hidden.mean(dim=(1, 2)))))
        return torch.cat((nothing, verbs), dim=2).reshape(batch, -1), values.squeeze(1)
