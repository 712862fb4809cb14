"""Nodes with different physics: one policy for all against every node's own."""

import numpy as np
import pytest

from parlmesh.federation.aggregators import joint_update, mean
from parlmesh.federation.learning_task import Part, make_task
from parlmesh.federation.schema import ModelSchema
from parlmesh.federation.tasks.varied_cart_pole import NAME
from parlmesh.federation.update_blocks import MemoryUpdates

PHYSICS = (
    {"length": 0.05, "masspole": 0.1},
    {"length": 0.2, "masspole": 1.0},
    {"length": 0.5, "masspole": 0.1},
    {"length": 1.5, "masspole": 0.5},
    {"length": 4.0, "masspole": 0.1},
)
SETTINGS = {
    "environment": {"id": NAME},
    "node_kwargs": PHYSICS,
    "num_envs": 16,
    # Long enough to see carts drift away: half a whole episode before each update.
    "trajectory_steps": 256,
    "updates": 2,
    "hidden": [32, 32],
    "evaluation_episodes": 20,
    "ppo": {"learning_rate": 0.002, "minibatch_steps": 512},
}
ROUNDS = 40


def trained(task, nodes, seed):
    """A model after some rounds of the given nodes; a single node is that node's own training."""
    tensors = dict(task.first(seed).tensors)
    schema = ModelSchema.of(tensors)
    for number in range(1, ROUNDS + 1):
        fitted = {node: task.fit(tensors, Part(str(node), node, number, seed)) for node in nodes}
        updates = MemoryUpdates({str(node): schema.difference(each.tensors, tensors) for node, each in fitted.items()})
        joint = joint_update(updates, mean([fitted[node].samples for node in sorted(fitted)]))
        moved, start = (schema.flatten(tensors) + joint).astype(np.float32), 0
        for spec in schema.joined:
            tensors[spec.name] = moved[start : start + spec.size].reshape(spec.shape)
            start += spec.size
    return tensors


def mean_return(task, tensors, seed):
    """Over the environments of all nodes."""
    nodes = range(1, len(PHYSICS) + 1)
    return float(np.mean([task.evaluate(tensors, Part("", node, 0, seed)).metrics["return"] for node in nodes]))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_federated_policy_beats_every_nodes_own_on_the_average_of_all(seed):
    task = make_task("ppo", SETTINGS, {})
    nodes = range(1, len(PHYSICS) + 1)
    joint = mean_return(task, trained(task, nodes, seed), seed)
    own = [mean_return(task, trained(task, [node], seed), seed) for node in nodes]
    assert joint > max(own), (joint, own)
