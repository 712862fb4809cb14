"""Random test meshes: nodes on a square, radio links to the nearest, worse with distance. Determined by the seed."""

import numpy as np

from parlmesh.errors import InvalidInput

from .measured_mesh import Edge, Mesh, mesh_of
from .mesh_limits import MOST_NODES

_NEAREST = 4
_MOST_LOSS = 0.5
_BEST_MBPS = 300.0


def generated_mesh(nodes: int, seed: int = 0, *, parts: int = 1) -> Mesh:
    """A mesh in `parts` connected parts. Loss grows with the square of the distance; the rate falls with loss."""
    if not (2 <= nodes <= MOST_NODES and 1 <= parts <= nodes // 2):
        raise InvalidInput(f"a mesh has 2 to {MOST_NODES} nodes in parts of 2 or more, got {nodes} in {parts}")
    rng = np.random.default_rng([seed, nodes, parts])
    width = len(str(nodes - 1))
    names = [f"n{number:0{width}d}" for number in range(nodes)]
    edges: list[Edge] = []
    positions: dict[str, tuple[float, float]] = {}
    for part, members in enumerate(np.array_split(np.arange(nodes), parts)):
        places = rng.random((len(members), 2))
        for member, (x, y) in zip(members, places, strict=True):
            positions[names[member]] = (float(x) + 1.2 * part, float(y))
        reach = 2.0 / np.sqrt(len(members))
        for one, other, distance in _pairs(places):
            loss = float(np.clip(_MOST_LOSS * (distance / reach) ** 2 + 0.02 * rng.random(), 0.0, _MOST_LOSS))
            facts = {
                "loss": round(loss, 4),
                "latency_ms": round(1.0 + 4.0 * rng.random() + 10.0 * loss, 3),
                "rate_mbps": round(_BEST_MBPS * (1.0 - loss) ** 2, 1),
            }
            edges.append(Edge(names[members[one]], names[members[other]], facts))
    return mesh_of(f"generated-{nodes}-{seed}", names, edges, positions)


def _pairs(places: np.ndarray) -> list[tuple[int, int, float]]:
    """Links each node to its nearest ones, then joins the remaining parts with extra links."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    count = len(places)
    tree = cKDTree(places)
    _, near = tree.query(places, min(_NEAREST + 1, count))
    pairs = {(min(node, int(other)), max(node, int(other))) for node in range(count) for other in near[node, 1:]}
    while True:
        one, other = np.array(sorted(pairs)).T
        linked = csr_array((np.ones(len(one)), (one, other)), shape=(count, count))
        parts, label = connected_components(linked, directed=False)
        if parts == 1:
            break
        # The node of the smallest part that is nearest to any other part.
        inside = np.flatnonzero(label == np.bincount(label).argmin())
        outside = np.setdiff1d(np.arange(count), inside)
        distance, which = cKDTree(places[outside]).query(places[inside])
        best = int(distance.argmin())
        ends = int(inside[best]), int(outside[which[best]])
        pairs.add((min(ends), max(ends)))
    return [(a, b, float(np.linalg.norm(places[a] - places[b]))) for a, b in sorted(pairs)]
