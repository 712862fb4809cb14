"""Which nodes belong together: communities by modularity (Louvain, of networkx), none larger than a task may be."""

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .graph import Graph

SEGMENTS_PAY_NODES = 1500
"""From here on distances by segments are found sooner than by one Dijkstra from every node, also in one process."""
MOST_MEMBERS = 500
"""A segment's distances are one tensor of 2 MB then, which every fleet takes."""


def segment_labels(graph: Graph, most: int = MOST_MEMBERS, seed: int = 0) -> Array:
    """The number of every node's segment [N]; the same for the same graph and seed."""
    if not 1 <= most <= MOST_MEMBERS:
        raise InvalidInput(f"a segment may have 1 to {MOST_MEMBERS} nodes, got {most}")
    import networkx

    simple = graph.simple()
    whole = networkx.Graph()
    whole.add_nodes_from(range(graph.nodes))
    # Cheap links hold nodes together.
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
        # What has no communities is cut by number.
        halves = [sorted(each) for each in parts] if len(parts) > 1 else [part[:most], part[most:]]
        waiting.extend(halves)
    labels = np.zeros(graph.nodes, np.int32)
    for label, part in enumerate(sorted(found)):
        labels[part] = label
    return labels
