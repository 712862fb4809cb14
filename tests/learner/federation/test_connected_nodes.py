import pytest

from learner.federation.connected_nodes import list_nodes, nodes_among
from parlmesh.federation.config import SelectionConfig
from parlmesh.federation.virtual_nodes import LABEL
from parlmesh.rpc import open_channel
from parlmesh.testing import serve
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from .conftest import Scheduler

KINDS = ["federated_fit", "federated_evaluate"]


def actor(name, kinds=KINDS, **labels):
    return pb.Actor(actor_id=name, node_id=name, kinds=kinds, labels=labels)


def test_nodes_are_those_that_can_train_and_have_the_labels():
    actors = [actor("b"), actor("a", zone="x"), actor("c", kinds=["rollout"])]
    assert nodes_among(actors, SelectionConfig()).nodes == ("a", "b")
    assert nodes_among(actors, SelectionConfig(labels={"zone": "x"})).nodes == ("a",)


@pytest.mark.parametrize("claim", ["1000000000", "9" * 5_000, "-1", "²", "4"])
def test_a_claim_beyond_the_servers_limit_costs_its_actor_only(claim):
    actors = [actor("a"), actor("liar", **{LABEL: claim}), actor("sim", **{LABEL: "3"})]
    found = nodes_among(actors, SelectionConfig(virtual_nodes=3))
    assert found.nodes == ("a", "sim#0", "sim#1", "sim#2")
    assert len(found.left_out) == 1
    assert "actor 'liar': label virtual_nodes" in found.sentence()
    assert len(found.sentence()) < 1_000


def test_virtual_nodes_are_off_unless_a_federation_allows_them():
    found = nodes_among([actor("a"), actor("sim", **{LABEL: "2"})], SelectionConfig())
    assert found.nodes == ("a",)
    assert "none are allowed here" in found.sentence()


def test_nobody_can_be_called_as_a_virtual_node_of_another_host():
    assert nodes_among([actor("a"), actor("sim#0"), actor("x" * 200)], SelectionConfig()).nodes == ("a",)


def test_all_claims_together_are_bounded():
    actors = [actor(f"h{k}", **{LABEL: "60000"}) for k in range(3)]
    found = nodes_among(actors, SelectionConfig(virtual_nodes=100_000))
    assert len(found.nodes) == 60_000
    assert len(found.left_out) == 2


async def test_all_pages_are_read():
    scheduler = Scheduler()
    scheduler.actors = [actor(f"n{k:03d}") for k in range(25)]
    async with serve([scheduler.service]) as address, open_channel(address) as channel:
        found = await list_nodes(SchedulerServiceStub(channel), SelectionConfig())
    assert found.nodes == tuple(f"n{k:03d}" for k in range(25))
