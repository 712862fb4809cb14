"""Distances by segments are those of the whole mesh."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import dijkstra

from parlmesh.errors import InvalidInput
from parlmesh.mesh.formats import read_mesh
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.path_distances import all_distances, checked_inside, merged, segments_of
from parlmesh.mesh.random_mesh import generated_mesh
from parlmesh.mesh.routes import RoutingTable, next_hops
from parlmesh.mesh.segments import segment_labels

from .conftest import bellman_ford, drawn_meshes, graph_of

ZOO = Path(os.environ.get("PARLMESH_DATA", "data")) / "topology-zoo"


def by_segments(graph, labels):
    segments = segments_of(graph, labels)
    return merged(graph, labels, segments, [all_distances(graph.within(each.members)) for each in segments])


def assert_exact(mesh, metric="auto"):
    graph = Graph.of(mesh, metric)
    found = by_segments(graph, segment_labels(graph))
    expected = dijkstra(graph.matrix())
    assert np.array_equal(found, expected)
    hops = next_hops(graph, found)
    table = RoutingTable(mesh.nodes, "any", found, hops)
    assert table.reachable_pairs == np.isfinite(expected).sum() - graph.nodes
    assert np.array_equal(hops >= 0, np.isfinite(expected))
    if graph.nodes <= 500:
        assert_no_loops(graph, hops)
    # Every hop is strictly nearer to the target, so no path returns to a node.
    goal = np.arange(graph.nodes)[None, :]
    onward = np.isfinite(expected) & (expected > 0)
    assert (found[hops, goal][onward] < found[onward]).all()
    return table


def assert_no_loops(graph, hops):
    """All pairs follow the next hops at once; every reachable one arrives within N steps."""
    goal = np.arange(graph.nodes)[None, :]
    at = np.where(hops >= 0, np.arange(graph.nodes)[:, None], goal)
    for _ in range(graph.nodes):
        if (at == goal).all():
            return
        at = hops[at, goal]
    raise AssertionError("some path never arrives")


@settings(max_examples=60, deadline=None)
@given(drawn_meshes(), st.data())
def test_any_cut_into_segments_merges_to_the_distances_of_the_whole(mesh, data):
    graph = graph_of(mesh)
    drawn = data.draw(st.lists(st.integers(0, 3), min_size=graph.nodes, max_size=graph.nodes))
    labels = np.unique(drawn, return_inverse=True)[1]
    found = by_segments(graph, labels)
    assert np.array_equal(found, bellman_ford(graph))
    assert np.array_equal(found, all_distances(graph))
    assert_no_loops(graph, next_hops(graph, found))


@settings(max_examples=30, deadline=None)
@given(drawn_meshes(directed=False))
def test_links_that_cost_the_same_both_ways_give_distances_that_do(mesh):
    found = all_distances(graph_of(mesh))
    assert np.array_equal(found, found.T)


@settings(max_examples=30, deadline=None)
@given(drawn_meshes(), st.data())
def test_a_dearer_link_never_brings_nodes_nearer(mesh, data):
    graph = graph_of(mesh)
    if len(graph.source):
        dearer = graph.cost.copy()
        dearer[data.draw(st.integers(0, len(dearer) - 1))] += 3_000_000
        order = np.lexsort((dearer, graph.target, graph.source))
        after = Graph(graph.nodes, graph.source[order], graph.target[order], dearer[order], graph.cable[order])
        assert (all_distances(after) >= all_distances(graph)).all()


@pytest.mark.skipif(not ZOO.is_dir(), reason="no folder topology-zoo in PARLMESH_DATA")
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_topologies_of_the_zoo_are_routed_exactly(every):
    files = sorted(ZOO.glob("*.gml"))
    assert len(files) == 138
    parted = sum(len(assert_exact(read_mesh(file)).parts) > 1 for file in files[::every])
    assert every > 1 or parted == 11


@pytest.mark.parametrize(
    "nodes", [300, pytest.param(2000, marks=pytest.mark.slow), pytest.param(5000, marks=pytest.mark.slow)]
)
def test_a_generated_mesh_is_routed_exactly(nodes):
    assert len(assert_exact(generated_mesh(nodes), "etx").parts) == 1


def test_a_mesh_in_parts_is_reported_as_such():
    table = assert_exact(generated_mesh(90, parts=3), "etx")
    assert [len(part) for part in table.parts] == [30, 30, 30]
    assert np.isinf(table.distance[0, -1])


def test_segments_are_the_same_every_time_and_no_larger_than_asked():
    graph = Graph.of(generated_mesh(200), "etx")
    labels = segment_labels(graph, most=20)
    assert np.array_equal(labels, segment_labels(graph, most=20))
    assert np.bincount(labels).max() <= 20


@pytest.mark.parametrize("by", [-1.0, 1.0])
def test_an_answer_that_is_not_the_shortest_is_detected(by):
    graph = Graph.of(generated_mesh(30), "etx")
    told = all_distances(graph)
    assert checked_inside(graph, told, "actor a") is told
    told[3, 7] += by
    with pytest.raises(InvalidInput, match="actor a from node"):
        checked_inside(graph, told, "actor a")
    with pytest.raises(InvalidInput, match="answered float64"):
        checked_inside(graph, told[:5], "actor a")
