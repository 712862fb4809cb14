"""Routing tables."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.ip_routes import Addresses, ip_routes, own_addresses
from parlmesh.mesh.measured_mesh import Edge, mesh_of
from parlmesh.mesh.path_distances import all_distances
from parlmesh.mesh.routes import RoutingTable, next_hops

from .conftest import drawn_meshes, graph_of


def table_of(mesh, metric="hops"):
    graph = Graph.of(mesh, metric)
    distance = all_distances(graph)
    return RoutingTable(mesh.nodes, metric, distance, next_hops(graph, distance))


SQUARE = [Edge("a", "b", {}), Edge("b", "d", {}), Edge("a", "c", {}), Edge("c", "d", {})]


def test_ties_go_to_the_first_neighbour_by_name_whatever_the_order_of_the_file():
    for edges in (SQUARE, SQUARE[::-1]):
        assert table_of(mesh_of("square", "dcba", edges)).path("a", "d") == ["a", "b", "d"]


@settings(max_examples=30, deadline=None)
@given(drawn_meshes())
def test_a_path_costs_what_the_table_says(mesh):
    graph = graph_of(mesh)
    distance = all_distances(graph)
    table = RoutingTable(mesh.nodes, "cost", distance, next_hops(graph, distance))
    simple = graph.simple()
    cost = {(a, b): c for a, b, c in zip(simple.source, simple.target, simple.cost, strict=True)}
    for source, target in np.argwhere(np.isfinite(distance)):
        path = [mesh.number(node) for node in table.path(mesh.nodes[source], mesh.nodes[target])]
        assert sum(cost[pair] for pair in itertools.pairwise(path)) == distance[source, target]


def test_unreachable_nodes_are_reported_without_errors_for_others():
    table = table_of(mesh_of("parts", "abcd", [Edge("a", "b", {}), Edge("c", "d", {})]))
    assert table.parts == [["a", "b"], ["c", "d"]]
    assert table.reachable_pairs == 4
    assert table.cost("a", "c") == float("inf")
    assert next(iter(table.rows()))["routes"] == {"b": {"next_hop": "b", "cost": 1.0}, "c": None, "d": None}
    with pytest.raises(NotFound, match="no path from a to c"):
        table.path("a", "c")
    with pytest.raises(InvalidInput, match="no node 'x'"):
        table.path("a", "x")


def test_ip_route_lines_are_those_that_linux_takes():
    table = table_of(mesh_of("parts", "abcx", [*SQUARE[:1], Edge("b", "c", {})]))
    addresses = own_addresses(table.nodes, "10.77.0.0/24")
    assert ip_routes(table, "a", addresses) == [
        "ip route replace 10.77.0.2/32 via 10.77.0.2",
        "ip route replace 10.77.0.3/32 via 10.77.0.2",
        "ip route replace unreachable 10.77.0.4/32",
    ]
    near = Addresses(addresses.nodes, {("a", "b"): ("192.168.1.2", "eth1")})
    assert ip_routes(table, "a", near)[1] == "ip route replace 10.77.0.3/32 via 192.168.1.2 dev eth1"


def test_names_that_are_addresses_are_used_and_other_names_need_a_subnet():
    assert own_addresses(("10.0.0.1", "fd00::1")).nodes["fd00::1"] == "fd00::1"
    for nodes, subnet, said in (
        (("a",), "", "not addresses"),
        (("a",), "no", "is not valid"),
        (tuple("abc"), "10.0.0.0/30", "no room"),
    ):
        with pytest.raises(InvalidInput, match=said):
            own_addresses(nodes, subnet)
