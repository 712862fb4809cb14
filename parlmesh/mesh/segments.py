"""Splits a mesh into segments: communities by modularity (networkx's Louvain), none too large for a task."""

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .graph import Graph

SEGMENTS_PAY_NODES = 1500
"""From this size, computing by segments is faster than a Dijkstra from every node, even in one process."""
MOST_MEMBERS = 500
"""Limits a segment's distances to a tensor of 2 MB, which every fleet accepts."""


def segment_labels(graph: Graph, most: int = MOST_MEMBERS, seed: int = 0) -> Array:
    """Every node's segment number [N]; deterministic for a graph and seed."""
    if not 1 <= most <= MOST_MEMBERS:
        raise InvalidInput(f"a segment may have 1 to {MOST_MEMBERS} nodes, got {most}")
    import networkx

    simple = graph.simple()
    whole = networkx.Graph()
    whole.add_nodes_from(range(graph.nodes))
    # Cheaper links bind nodes more strongly.
    weights = simple.cost.min() / simple.cost if len(simple.cost) else simple.cost
    whole.add_weighted_edges_from(
        zip(simple.source.tolist(), simple.target.tolist(), np.asarray(weights, np.float64).tolist(), strict=True)
    )
    found: list[list[int]] = []
    waiting = [sorted(part) for part in networkx.community.louvain_communities(whole, seed=seed)]
    while waiting:
        part = waiting.pop()
        if len(part) <= most:
            found.append(part)
            continue
        parts = networkx.community.louvain_communities(whole.subgraph(part), seed=seed)
        # A part without communities is cut by node number.
        halves = [sorted(each) for each in parts] if len(parts) > 1 else [part[:most], part[most:]]
        waiting.extend(halves)
    labels = np.zeros(graph.nodes, np.int32)
    for label, part in enumerate(sorted(found)):
        labels[part] = label
    return labels
