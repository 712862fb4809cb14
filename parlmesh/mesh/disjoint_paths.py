"""Paths between two nodes that share no cable, or no node, with the least total cost (Suurballe; Bhandari).

A flow of k units over links of capacity one. Each unit takes the shortest path in the residual graph, where it may
cancel a link used before.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .graph import Graph

MOST_PATHS = 16


@dataclass(frozen=True, slots=True)
class Path:
    """A path as node numbers."""

    nodes: tuple[int, ...]
    cost: int
    """In cost units."""


def disjoint_paths(graph: Graph, source: int, target: int, paths: int, *, nodes: bool = False) -> list[Path]:
    """Up to `paths` paths, shortest first; fewer if no more exist."""
    if not 1 <= paths <= MOST_PATHS:
        raise InvalidInput(f"paths must be 1 to {MOST_PATHS}, got {paths}", reason="PATHS")
    if source == target:
        raise InvalidInput("paths need two different nodes, and both ends are the same", reason="PATHS")
    if not (0 <= source < graph.nodes and 0 <= target < graph.nodes):
        raise InvalidInput(f"paths need nodes from 0 to {graph.nodes - 1}, got {source} and {target}", reason="PATHS")
    flow = _Flow(graph, source, target, nodes)
    while flow.sent < paths and flow.send():
        pass
    return flow.paths()


class _Flow:
    """Arcs of capacity one. If nodes must not be shared, each is split in two, joined by an arc of cost 0."""

    def __init__(self, graph: Graph, source: int, target: int, split: bool) -> None:
        inner = np.setdiff1d(np.arange(graph.nodes), (source, target)) if split else np.zeros(0, np.int64)
        self._nodes = graph.nodes * (2 if split else 1)
        # Links leave an inner node from its second half.
        leaving = np.arange(graph.nodes)
        leaving[inner] = graph.nodes + inner
        self._tail = np.concatenate((leaving[graph.source], inner))
        self._head = np.concatenate((graph.target, graph.nodes + inner))
        self._cost = np.concatenate((graph.cost.astype(np.float64), np.zeros(len(inner))))
        self._used = np.zeros(len(self._tail), np.bool_)
        self._potential = np.zeros(self._nodes)
        self._ends, self._whole = (source, target), graph.nodes
        self.sent = 0

    def send(self) -> bool:
        """Sends another unit; False if no path is left."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import dijkstra

        tail = np.where(self._used, self._head, self._tail)
        head = np.where(self._used, self._tail, self._head)
        cost = np.where(self._used, -self._cost, self._cost) + self._potential[tail] - self._potential[head]
        order = np.lexsort((cost, head, tail))
        first = np.ones(len(order), np.bool_)
        first[1:] = (np.diff(tail[order]) != 0) | (np.diff(head[order]) != 0)
        arcs = order[first]
        starts = np.searchsorted(tail[arcs], np.arange(self._nodes + 1))
        # scipy treats a stored zero as a link of cost 0, as intended.
        matrix = csr_array((cost[arcs], head[arcs], starts), shape=(self._nodes, self._nodes))
        source, target = self._ends
        distance, before = dijkstra(matrix, indices=source, return_predecessors=True)
        if np.isinf(distance[target]):
            return False
        place = {(int(tail[arc]), int(head[arc])): int(arc) for arc in arcs}
        node = target
        while node != source:
            arc = place[int(before[node]), node]
            self._used[arc] = not self._used[arc]
            node = int(before[node])
        self._potential += np.minimum(distance, distance[target])
        self.sent += 1
        return True

    def paths(self) -> list[Path]:
        """The path of each unit along the used arcs; ties go to the lowest number."""
        source, target = self._ends
        onward: dict[int, list[int]] = {}
        for arc in np.flatnonzero(self._used)[::-1].tolist():
            onward.setdefault(int(self._tail[arc]), []).append(arc)
        found = []
        for _ in range(self.sent):
            node, nodes, cost = source, [source], 0
            while node != target:
                arc = onward[node].pop()
                node = int(self._head[arc])
                cost += int(self._cost[arc])
                if node < self._whole:
                    nodes.append(node)
            found.append(Path(tuple(nodes), cost))
        return sorted(found, key=lambda path: (path.cost, path.nodes))


def pairs_array(pairs: list[tuple[int, int]]) -> Array:
    """The pairs as a task's tensor [P, 2]."""
    return np.array(pairs, np.int32).reshape(-1, 2)
