"""Routing tables: to every node the next hop, the neighbour with the lowest number among equals."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.types import Array

from .graph import Graph
from .link_costs import UNIT


def next_hops(graph: Graph, distance: Array, whose: str = "the distances") -> Array:
    """From each node to each [N, N] int32: itself, a neighbour, or -1 where there is no path.

    This also proves the distances. As costs are positive, distance(u, v) = min over neighbours n of cost(u, n) +
    distance(n, v), with 0 on the diagonal, has one solution, and following next hops always comes nearer: no loops.
    """
    if np.isnan(distance).any() or distance.diagonal().any() or (distance < 0).any():
        raise _wrong(whose, "have a value that no distance has")
    simple = graph.simple()
    starts = np.searchsorted(simple.source, np.arange(graph.nodes + 1)).tolist()
    neighbours, costs = simple.target.tolist(), simple.cost.astype(np.float64).tolist()
    hops = np.full((graph.nodes, graph.nodes), -1, np.int32)
    # Written into again and again: rows are short, and making arrays would take longer than filling them.
    through, shortest = np.empty(graph.nodes), np.empty(graph.nodes)
    best = np.empty(graph.nodes, np.bool_)
    for node in range(graph.nodes):
        row, chosen = distance[node], hops[node]
        shortest.fill(np.inf)
        # The first neighbour comes last and stays.
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
    """In units [N, N]."""
    next_hop: Array
    """[N, N]."""
    made: dict[str, Any] = field(default_factory=dict)
    """How it was computed, and why so."""

    def path(self, source: str, target: str) -> list[str]:
        """Nodes from one end to the other; NotFound where nothing leads there."""
        node, goal = self._number(source), self._number(target)
        if self.next_hop[node, goal] < 0:
            raise NotFound(f"there is no path from {source} to {target}", reason="NO_PATH")
        found = [node]
        while node != goal:
            node = int(self.next_hop[node, goal])
            found.append(node)
        return [self.nodes[each] for each in found]

    def cost(self, source: str, target: str) -> float:
        """In the metric's own unit; infinite where there is no path."""
        return float(self.distance[self._number(source), self._number(target)]) / UNIT

    @property
    def parts(self) -> list[list[str]]:
        """Nodes that reach each other, the largest part first."""
        number: dict[bytes, list[str]] = {}
        mutual = np.isfinite(self.distance) & np.isfinite(self.distance.T)
        for node, row in zip(self.nodes, mutual, strict=True):
            number.setdefault(row.tobytes(), []).append(node)
        return sorted(number.values(), key=lambda part: (-len(part), part))

    @property
    def reachable_pairs(self) -> int:
        """Of different nodes, each way."""
        return int(np.isfinite(self.distance).sum()) - len(self.nodes)

    @property
    def total_cost(self) -> float:
        """Of all reachable pairs."""
        # Whole numbers, added as such: the sum may pass 2^53.
        return int(self.distance[np.isfinite(self.distance)].astype(np.int64).sum()) / UNIT

    def rows(self) -> Iterator[dict[str, Any]]:
        """A JSON object for every node: next hop and cost by destination; what cannot be reached is null."""
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
