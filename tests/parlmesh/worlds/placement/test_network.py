"""The network that scores pairs of nodes and deployments."""

import pytest

torch = pytest.importorskip("torch")

from parlmesh.environments import environment_spec  # noqa: E402
from parlmesh.errors import InvalidInput  # noqa: E402
from parlmesh.plugins import load_plugins  # noqa: E402
from parlmesh.policies import PolicySpec  # noqa: E402
from parlmesh.worlds.placement.network import PlacementNetwork  # noqa: E402

NODES, DEPLOYMENTS = 5, 3


def spec_for(**settings):
    load_plugins(("worlds",))
    kwargs = {"nodes": NODES, "deployments": DEPLOYMENTS}
    environment = environment_spec({"id": "parlmesh/Placement-v3", "kwargs": kwargs})
    return PolicySpec.for_environment(environment, network="placement", **settings)


def test_nodes_in_another_order_have_their_logits_in_that_order():
    torch.manual_seed(0)
    network = PlacementNetwork(spec_for(hidden=(16, 16)))
    torch.nn.init.normal_(network.verbs.weight)
    parts = [torch.rand(2, size) for size in network._sizes]
    order = torch.randperm(NODES)

    def in_order(values, width):
        return values.reshape(2, NODES, width)[:, order].reshape(2, -1)

    facts, distance, nodes, pods, time = parts
    turned = [facts, in_order(distance, DEPLOYMENTS), in_order(nodes, 6), in_order(pods, DEPLOYMENTS), time]
    logits, value = network(torch.cat(parts, 1))
    other, same = network(torch.cat(turned, 1))
    shape = (2, DEPLOYMENTS, 3, NODES)
    verbs, turned_verbs = (given.reshape(2, DEPLOYMENTS, -1)[:, :, 1:].reshape(shape) for given in (logits, other))
    torch.testing.assert_close(verbs[..., order], turned_verbs)
    torch.testing.assert_close(value, same)


def test_a_world_of_other_shape_is_refused():
    environment = environment_spec({"id": "CartPole-v1"})
    with pytest.raises(InvalidInput, match="only fits parlmesh/Placement-v3"):
        PlacementNetwork(PolicySpec.for_environment(environment, hidden=(8, 8)))
    with pytest.raises(InvalidInput, match="two hidden layers"):
        PlacementNetwork(spec_for(hidden=(8,)))
