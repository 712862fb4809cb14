"""Meshes that hypothesis draws."""

import numpy as np
from hypothesis import strategies as st

from parlmesh.mesh.graph import Graph
from parlmesh.mesh.measured_mesh import Edge, Mesh, mesh_of


@st.composite
def drawn_meshes(draw, most_nodes=12, directed=True):
    """Few costs, so that there are ties; often in parts; sometimes with parallel links."""
    nodes = draw(st.integers(2, most_nodes))
    ends = st.integers(0, nodes - 1)
    one_way = directed and draw(st.booleans())
    links = draw(st.lists(st.tuples(ends, ends, st.integers(1, 4)), max_size=3 * nodes))
    edges = [Edge(f"n{a:02d}", f"n{b:02d}", {"cost": float(cost)}, one_way) for a, b, cost in links]
    return mesh_of("drawn", [f"n{node:02d}" for node in range(nodes)], edges)


def graph_of(mesh: Mesh) -> Graph:
    return Graph.of(mesh, "cost" if mesh.links else "hops")


def bellman_ford(graph: Graph) -> np.ndarray:
    """The slow reference."""
    found = np.full((graph.nodes, graph.nodes), np.inf)
    np.fill_diagonal(found, 0)
    for _ in range(graph.nodes):
        for source, target, cost in zip(graph.source, graph.target, graph.cost, strict=True):
            found[:, target] = np.minimum(found[:, target], found[:, source] + cost)
    return found
