"""Routing tables: the next hop to every node; among equals, the neighbour with the lowest number."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.types import Array

from .graph import Graph
from .link_costs import UNIT


def next_hops(graph: Graph, distance: Array, whose: str = "the distances") -> Array:
    """Next hops between all nodes [N, N] int32: the node itself, a neighbour, or -1 without a path.

    This also verifies the distances. Since costs are positive, distance(u, v) = min over neighbours n of cost(u, n) +
    distance(n, v), with 0 on the diagonal, has one solution, and every next hop is nearer: there are no loops.
    """
    if np.isnan(distance).any() or distance.diagonal().any() or (distance < 0).any():
        raise _wrong(whose, "contain NaN, a negative value or a diagonal that is not 0")
    simple = graph.simple()
    starts = np.searchsorted(simple.source, np.arange(graph.nodes + 1)).tolist()
    neighbours, costs = simple.target.tolist(), simple.cost.astype(np.float64).tolist()
    hops = np.full((graph.nodes, graph.nodes), -1, np.int32)
    # Reused buffers: rows are short, and allocating arrays would take longer than filling them.
    through, shortest = np.empty(graph.nodes), np.empty(graph.nodes)
    best = np.empty(graph.nodes, np.bool_)
    for node in range(graph.nodes):
        row, chosen = distance[node], hops[node]
        shortest.fill(np.inf)
        # Backwards, so that the first neighbour is written last and wins ties.
        for link in range(starts[node + 1] - 1, starts[node] - 1, -1):
            np.add(distance[neighbours[link]], costs[link], out=through)
            np.equal(through, row, out=best)
            np.copyto(chosen, neighbours[link], where=best)
            np.minimum(shortest, through, out=shortest)
        shortest[node] = 0.0
        if not np.array_equal(shortest, row):
            raise _wrong(whose, f"from node {node} are not the shortest")
        chosen[np.isinf(row)] = -1
        chosen[node] = node
    return hops


def _wrong(whose: str, what: str) -> InvalidInput:
    return InvalidInput(f"{whose} {what}", reason="WRONG_DISTANCES")


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Paths between all nodes of a mesh."""

    nodes: tuple[str, ...]
    metric: str
    distance: Array
    """In cost units [N, N]."""
    next_hop: Array
    """[N, N]."""
    made: dict[str, Any] = field(default_factory=dict)
    """How it was computed, and why."""

    def path(self, source: str, target: str) -> list[str]:
        """Nodes from source to target; raises NotFound without a path."""
        node, goal = self._number(source), self._number(target)
        if self.next_hop[node, goal] < 0:
            raise NotFound(f"there is no path from {source} to {target}", reason="NO_PATH")
        found = [node]
        while node != goal:
            node = int(self.next_hop[node, goal])
            found.append(node)
        return [self.nodes[each] for each in found]

    def cost(self, source: str, target: str) -> float:
        """In the metric's own unit; infinite without a path."""
        return float(self.distance[self._number(source), self._number(target)]) / UNIT

    @property
    def parts(self) -> list[list[str]]:
        """Groups of nodes that reach each other, largest first."""
        number: dict[bytes, list[str]] = {}
        mutual = np.isfinite(self.distance) & np.isfinite(self.distance.T)
        for node, row in zip(self.nodes, mutual, strict=True):
            number.setdefault(row.tobytes(), []).append(node)
        return sorted(number.values(), key=lambda part: (-len(part), part))

    @property
    def reachable_pairs(self) -> int:
        """Directed pairs of different nodes with a path."""
        return int(np.isfinite(self.distance).sum()) - len(self.nodes)

    @property
    def total_cost(self) -> float:
        """Sum over all reachable pairs."""
        # Add as integers: the sum may exceed 2^53.
        return int(self.distance[np.isfinite(self.distance)].astype(np.int64).sum()) / UNIT

    def rows(self) -> Iterator[dict[str, Any]]:
        """One JSON object per node: next hop and cost by destination; null for unreachable ones."""
        for number, node in enumerate(self.nodes):
            routes = {
                goal: None if hop < 0 else {"next_hop": self.nodes[hop], "cost": round(cost / UNIT, 6)}
                for goal, hop, cost in zip(
                    self.nodes, self.next_hop[number].tolist(), self.distance[number].tolist(), strict=True
                )
                if goal != node
            }
            yield {"node": node, "metric": self.metric, "routes": routes}

    def _number(self, node: str) -> int:
        try:
            return self.nodes.index(node)
        except ValueError:
            raise InvalidInput(f"there is no node {node!r} in the table", reason="TOPOLOGY") from None
