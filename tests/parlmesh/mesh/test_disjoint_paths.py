"""Disjoint paths, against networkx's minimum-cost flow."""

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.mesh.disjoint_paths import disjoint_paths
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.measured_mesh import Edge, mesh_of

from .conftest import drawn_meshes, graph_of


def least_cost(graph, source, target, paths, nodes):
    flow = networkx.DiGraph()
    simple = graph.simple()
    for tail, head, cost in zip(simple.source.tolist(), simple.target.tolist(), simple.cost.tolist(), strict=True):
        flow.add_edge((tail, 1), (head, 0), capacity=1, weight=cost)
    for node in range(graph.nodes):
        room = 1 if nodes and node not in (source, target) else 99
        flow.add_edge((node, 0), (node, 1), capacity=room, weight=0)
    flow.nodes[source, 1]["demand"], flow.nodes[target, 0]["demand"] = -paths, paths
    try:
        return networkx.min_cost_flow_cost(flow)
    except networkx.NetworkXUnfeasible:
        return None


@settings(max_examples=60, deadline=None)
@given(drawn_meshes(most_nodes=8, directed=False), st.booleans(), st.integers(1, 3))
def test_the_total_cost_is_the_least_and_nothing_is_shared(mesh, nodes, wanted):
    # Parallel links are one for networkx's flow here.
    graph = graph_of(mesh).simple()
    found = disjoint_paths(graph, 0, graph.nodes - 1, wanted, nodes=nodes)
    costs = {
        (a, b): c for a, b, c in zip(graph.source.tolist(), graph.target.tolist(), graph.cost.tolist(), strict=True)
    }
    used = [pair for path in found for pair in zip(path.nodes, path.nodes[1:], strict=False)]
    assert len({tuple(sorted(pair)) for pair in used}) == len(used)
    assert all(sum(costs[pair] for pair in zip(p.nodes, p.nodes[1:], strict=False)) == p.cost for p in found)
    if nodes:
        inner = [node for path in found for node in path.nodes[1:-1]]
        assert len(set(inner)) == len(inner)
    if found:
        assert sum(path.cost for path in found) == least_cost(graph, 0, graph.nodes - 1, len(found), nodes)
    if len(found) < wanted:
        assert least_cost(graph, 0, graph.nodes - 1, len(found) + 1, nodes) is None


def test_a_used_link_is_taken_back_where_two_paths_need_it():
    # The shortest path a b c d leaves no second one unless b – c is given up.
    costs = {"ab": 1, "bc": 1, "cd": 1, "ac": 3, "bd": 3}
    mesh = mesh_of("trap", "abcd", [Edge(ends[0], ends[1], {"cost": cost}) for ends, cost in costs.items()])
    found = disjoint_paths(Graph.of(mesh, "cost"), 0, 3, 2, nodes=True)
    assert [path.nodes for path in found] == [(0, 1, 3), (0, 2, 3)]


def test_parallel_links_are_two_paths():
    mesh = mesh_of("two", "ab", [Edge("a", "b", {"cost": 1.0}), Edge("a", "b", {"cost": 3.0})])
    assert [path.cost for path in disjoint_paths(Graph.of(mesh, "cost"), 0, 1, 3)] == [1_000_000, 3_000_000]


@pytest.mark.parametrize(("ends", "paths"), [((0, 0), 1), ((0, 9), 1), ((0, 1), 0), ((0, 1), 17)])
def test_an_impossible_path_is_refused(ends, paths):
    mesh = mesh_of("two", "ab", [Edge("a", "b", {})])
    with pytest.raises(InvalidInput, match="paths"):
        disjoint_paths(Graph.of(mesh, "hops"), ends[0], ends[1], paths)
