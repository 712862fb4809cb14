"""Effects of failures, against recomputing everything."""

import numpy as np
import pytest
from hypothesis import given, settings

from parlmesh.errors import InvalidInput
from parlmesh.mesh.failures import Failures, scenarios_of
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.measured_mesh import Edge, mesh_of
from parlmesh.mesh.path_distances import all_distances
from parlmesh.mesh.random_mesh import generated_mesh
from parlmesh.mesh.traffic import Demands, capacities

from .conftest import drawn_meshes, graph_of


def anew(graph, failing, nodes):
    gone = np.isin(graph.cable, failing)
    asked = np.ones(graph.nodes, bool)
    if nodes:
        gone = np.isin(graph.source, failing) | np.isin(graph.target, failing)
        asked[failing] = False
    before = all_distances(graph)[np.ix_(asked, asked)]
    after = all_distances(graph.only(~gone))[np.ix_(asked, asked)]
    longer = np.isfinite(after) & (after > before)
    cut = np.isfinite(before) & np.isinf(after)
    return cut.sum(), longer.sum(), int((after[longer] - before[longer]).sum())


@settings(max_examples=40, deadline=None)
@given(drawn_meshes(most_nodes=9))
def test_updated_distances_equal_recomputed_ones(mesh):
    graph = graph_of(mesh)
    failures = Failures(graph)
    before = failures.distance.copy()
    for nodes, things in ((False, mesh.cables), (True, len(mesh.nodes))):
        for depth in (1, 2):
            scenarios, _ = scenarios_of(things, depth, most=20)
            found = failures.consequences(scenarios, nodes)
            for index, failing in enumerate(scenarios):
                expected = anew(graph, failing, nodes)
                told = found.cut_pairs[index], found.longer_pairs[index], found.extra_cost[index]
                assert told == expected
    assert np.array_equal(failures.distance, before)


def test_all_pairs_of_failures_are_evaluated_or_a_drawn_share_of_them():
    every, possible = scenarios_of(5, 2)
    assert (len(every), possible) == (10, 10)
    some, possible = scenarios_of(100, 2, most=50, seed=3)
    assert possible == 4950
    assert len({tuple(row) for row in some.tolist()}) == 50
    assert np.array_equal(some, scenarios_of(100, 2, most=50, seed=3)[0])
    with pytest.raises(InvalidInput, match="depth must be 1"):
        scenarios_of(5, 3)


def test_the_bottleneck_of_a_failure_is_named_by_its_link():
    # a – b – d is short; when it fails, a – c – d has a narrow end.
    facts = {"cost": 1.0, "rate_mbps": 100.0}
    edges = [Edge("a", "b", facts), Edge("b", "d", facts)]
    edges += [Edge("a", "c", {"cost": 2.0, "rate_mbps": 100.0}), Edge("c", "d", {"cost": 2.0, "rate_mbps": 20.0})]
    mesh = mesh_of("diamond", "abcd", edges)
    graph = Graph.of(mesh, "cost")
    demands = Demands.of(mesh, [("a", "d", 30.0), ("a", "b", 10.0)])
    found = Failures(graph, demands, capacities(mesh, graph)).consequences(np.array([[1], [0]]))
    link = int(found.bottleneck[0])
    assert (mesh.nodes[graph.source[link]], mesh.nodes[graph.target[link]]) == ("c", "d")
    assert found.utilisation.tolist() == [1.5, 2.0]
    assert found.unrouted.tolist() == [0.0, 0.0]


def test_a_bridge_cuts_what_stands_behind_it():
    mesh = mesh_of("line", "abc", [Edge("a", "b", {}), Edge("b", "c", {})])
    found = Failures(Graph.of(mesh, "hops")).consequences(np.array([[0], [1]]))
    assert found.cut_pairs.tolist() == [4, 4]


def test_a_parallel_link_takes_over():
    mesh = mesh_of("two", "ab", [Edge("a", "b", {"cost": 1.0}), Edge("a", "b", {"cost": 3.0})])
    found = Failures(Graph.of(mesh, "cost")).consequences(np.array([[0], [1]]))
    assert found.cut_pairs.tolist() == [0, 0]
    assert found.worst_stretch.tolist() == [3.0, 1.0]


def test_a_second_caller_does_not_disturb_the_first():
    failures = Failures(Graph.of(generated_mesh(20), "etx"))
    assert failures.apart().distance is not failures.distance
