"""Distances between all nodes, computed at once or by segments. Both are exact, because costs are integers.

A shortest path within a segment is found there. Any other path leaves its segment through a border node, goes from
border to border and enters the last segment through a border node, so it consists of three known parts.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .graph import Graph


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a mesh, and the border nodes through which paths leave it."""

    members: Array
    """Node numbers in the whole mesh, ascending [n]."""
    border: Array
    """Positions in `members` [b]."""


def all_distances(graph: Graph) -> Array:
    """Least cost between all pairs of nodes [N, N]; infinite without a path."""
    from scipy.sparse.csgraph import dijkstra

    found: Array = dijkstra(graph.matrix())
    return found


def segments_of(graph: Graph, labels: Array) -> list[Segment]:
    """The segments, from every node's segment number [N]."""
    crossing = labels[graph.source] != labels[graph.target]
    on_border = np.zeros(graph.nodes, np.bool_)
    on_border[graph.source[crossing]] = on_border[graph.target[crossing]] = True
    found = []
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == label)
        found.append(Segment(members, np.flatnonzero(on_border[members])))
    return found


def merged(graph: Graph, labels: Array, segments: list[Segment], inside: list[Array]) -> Array:
    """Distances of the whole mesh [N, N], from the distances inside each segment [n, n]."""
    between = _border_distances(graph, labels, segments, inside)
    distance = np.full((graph.nodes, graph.nodes), np.inf)
    for segment, within in zip(segments, inside, strict=True):
        distance[np.ix_(segment.members, segment.members)] = within
    borders = np.cumsum([0, *(len(segment.border) for segment in segments)])
    # Distance from every node to every border node.
    leaving = np.full((graph.nodes, int(borders[-1])), np.inf)
    for index, (segment, within) in enumerate(zip(segments, inside, strict=True)):
        rows = between[borders[index] : borders[index + 1]]
        leaving[segment.members] = _joined(within[:, segment.border], rows)
    for index, (segment, within) in enumerate(zip(segments, inside, strict=True)):
        columns = leaving[:, borders[index] : borders[index + 1]]
        found = _joined(columns, within[segment.border])
        distance[:, segment.members] = np.minimum(distance[:, segment.members], found)
    return distance


def _border_distances(graph: Graph, labels: Array, segments: list[Segment], inside: list[Array]) -> Array:
    """Distances between all border nodes [B, B], over links between segments and shortcuts through them."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    nodes = np.concatenate([segment.members[segment.border] for segment in segments])
    place = np.full(graph.nodes, -1)
    place[nodes] = np.arange(len(nodes))
    simple = graph.simple()
    crossing = labels[simple.source] != labels[simple.target]
    sources, targets = [place[simple.source[crossing]]], [place[simple.target[crossing]]]
    costs = [simple.cost[crossing].astype(np.float64)]
    for segment, within in zip(segments, inside, strict=True):
        through = within[np.ix_(segment.border, segment.border)]
        rows, columns = np.nonzero(np.isfinite(through) & (through > 0))
        own = place[segment.members[segment.border]]
        sources.append(own[rows])
        targets.append(own[columns])
        costs.append(through[rows, columns])
    shape = (len(nodes), len(nodes))
    joined = csr_array((np.concatenate(costs), (np.concatenate(sources), np.concatenate(targets))), shape=shape)
    found: Array = dijkstra(joined) if len(nodes) else np.zeros(shape)
    return found


def _joined(left: Array, right: Array) -> Array:
    """Min-plus product: min_k left[i, k] + right[k, j]."""
    found = np.full((len(left), right.shape[1]), np.inf)
    sums = np.empty_like(found)
    for middle in range(left.shape[1]):
        np.add(left[:, middle, None], right[None, middle], out=sums)
        np.minimum(found, sums, out=found)
    return found


def checked_inside(graph: Graph, inside: Array, whose: str) -> Array:
    """Distances computed elsewhere, after verifying them: see `next_hops`."""
    from .routes import next_hops

    if inside.shape != (graph.nodes, graph.nodes) or inside.dtype != np.float64:
        raise InvalidInput(
            f"{whose} answered {inside.dtype} {list(inside.shape)} for a segment of {graph.nodes} nodes",
            reason="WRONG_DISTANCES",
        )
    next_hops(graph, inside, whose)
    return inside
