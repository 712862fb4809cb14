"""Demands and the loads they cause."""

import itertools

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.measured_mesh import Edge, mesh_of
from parlmesh.mesh.path_distances import all_distances
from parlmesh.mesh.random_mesh import generated_mesh
from parlmesh.mesh.routes import RoutingTable, next_hops
from parlmesh.mesh.traffic import Demands, Neighbours, capacities, gravity_demands, read_demands

LINE = mesh_of("line", "abcx", [Edge("a", "b", {"rate_mbps": 10.0}), Edge("b", "c", {})])


def test_loads_are_those_of_walking_every_path():
    mesh = generated_mesh(40, seed=5)
    graph = Graph.of(mesh, "etx")
    distance = all_distances(graph)
    demands = gravity_demands(mesh, 500.0)
    loads = Neighbours(graph).loads(distance, demands, len(graph.source))
    table = RoutingTable(mesh.nodes, "etx", distance, next_hops(graph, distance))
    place = {(a, b): i for i, (a, b) in enumerate(zip(graph.source.tolist(), graph.target.tolist(), strict=True))}
    expected = np.zeros(len(graph.source))
    for source, target, volume in zip(demands.source, demands.target, demands.volume, strict=True):
        path = [mesh.number(node) for node in table.path(mesh.nodes[source], mesh.nodes[target])]
        for pair in itertools.pairwise(path):
            expected[place[pair]] += volume
    assert np.allclose(loads.load, expected)
    assert loads.unrouted == 0
    assert demands.volume.sum() == pytest.approx(500.0)


def test_demands_without_a_path_are_counted_and_a_link_without_capacity_is_refused():
    graph = Graph.of(LINE, "hops")
    demands = Demands.of(LINE, [("a", "c", 4.0), ("a", "x", 3.0), ("b", "b", 9.0)])
    loads = Neighbours(graph).loads(all_distances(graph), demands, len(graph.source))
    assert loads.unrouted == 3.0
    assert loads.load.sum() == 8.0
    with pytest.raises(InvalidInput, match="b – c has no capacity"):
        capacities(LINE, graph)
    link, used = loads.bottleneck(capacities(LINE, graph, 2.0))
    assert (int(graph.source[link]), used) == (1, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "source,target,volume\na,c,4\n",
        '[{"source": "a", "target": "c", "volume": 4}]',
        '{"demands": {"d1": {"source": "a", "target": "c", "demandValue": "4.0"}}}',
    ],
)
def test_demands_are_read_from_csv_and_json(tmp_path, text):
    file = tmp_path / "demands"
    file.write_text(text)
    demands = read_demands(LINE, file)
    assert (demands.source.tolist(), demands.target.tolist(), demands.volume.tolist()) == ([0], [2], [4.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source,target\na,c\n", "needs a volume"),
        ("source,target,volume\na,q,4\n", "node 'q'"),
        ("source,target,volume\na,c,-1\n", "must be 0 or more"),
        ("[1]", "must be CSV"),
        ("{", "must be CSV"),
    ],
)
def test_an_invalid_demand_is_refused(tmp_path, text, said):
    file = tmp_path / "demands"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_demands(LINE, file)
