"""Consequences of failing cables or nodes: disconnected pairs, longer paths, and the new routes of the traffic.

Only pairs with a shortest path over a failed link can change. Their distances are recomputed from the remaining ones,
neighbour by neighbour, until nothing changes: exact, and much cheaper than recomputing all distances.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Self

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .graph import Graph
from .traffic import Demands, Neighbours

MOST_SCENARIOS = 1_000_000
MOST_NODES = 2000
"""Most nodes for scenarios, since each one looks at all pairs."""
NOTHING = -1


@dataclass(frozen=True, slots=True)
class Consequences:
    """The consequences of S scenarios; all columns have length S."""

    cut_pairs: Array
    """Directed pairs that lost their path; pairs that involve a failed node do not count [S]."""
    longer_pairs: Array
    extra_cost: Array
    """In cost units, over all pairs that still have a path."""
    worst_stretch: Array
    """Largest ratio of a path's new cost to its old one."""
    worst_source: Array
    worst_target: Array
    unrouted: Array
    """In Mbit/s."""
    utilisation: Array
    """Utilisation of the bottleneck; 0 without demands."""
    bottleneck: Array
    """Link number of the bottleneck; -1 without demands."""

    @classmethod
    def empty(cls, scenarios: int) -> "Consequences":
        """Columns for this many scenarios."""

        def whole(value: int) -> Array:
            return np.full(scenarios, value, np.int64)

        def part(value: float) -> Array:
            return np.full(scenarios, value, np.float64)

        return cls(
            cut_pairs=whole(0),
            longer_pairs=whole(0),
            extra_cost=whole(0),
            worst_stretch=part(1.0),
            worst_source=whole(NOTHING),
            worst_target=whole(NOTHING),
            unrouted=part(0.0),
            utilisation=part(0.0),
            bottleneck=whole(NOTHING),
        )

    def tensors(self) -> dict[str, Array]:
        """The tensors of an answer."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def joined(cls, parts: list["Consequences"]) -> "Consequences":
        """The parts concatenated."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


class Failures:
    """One mesh and its distances without failures; evaluates many scenarios."""

    def __init__(self, graph: Graph, demands: Demands | None = None, capacity: Array | None = None) -> None:
        from .path_distances import all_distances

        self.graph, self.demands, self.capacity = graph, demands, capacity
        self.distance = all_distances(graph)
        self._leaving = Neighbours(graph) if demands is not None else None
        self._entering = Neighbours(graph.reversed())
        there = self._entering.link >= 0
        self._entering_link = np.zeros(there.shape, np.int64)
        self._entering_link[there] = graph.reversed_order()

    def apart(self) -> Self:
        """A copy for the same mesh, for use at the same time."""
        other = copy(self)
        other.distance = self.distance.copy()
        return other

    def consequences(
        self, scenarios: Array, nodes: bool = False, check: Callable[[], None] = lambda: None
    ) -> Consequences:
        """Consequences of cables or nodes failing together; one row per scenario, padded with -1 [S, K]."""
        found = Consequences.empty(len(scenarios))
        for index, failing in enumerate(scenarios):
            check()
            self._fail(failing[failing >= 0], nodes, found, index)
        return found

    def _fail(self, failing: Array, nodes: bool, found: Consequences, index: int) -> None:
        graph, distance = self.graph, self.distance
        gone = np.isin(graph.cable, failing)
        if nodes:
            gone = np.isin(graph.source, failing) | np.isin(graph.target, failing)
        pairs = self._pairs_over(np.flatnonzero(gone))
        if nodes:
            pairs = pairs[~np.isin(pairs // graph.nodes, failing) & ~np.isin(pairs % graph.nodes, failing)]
        before = distance.ravel()[pairs]
        after = self._found_again(pairs, gone)
        _compare(pairs, before, after, graph.nodes, found, index)
        if self.demands is not None and self._leaving is not None and self.capacity is not None:
            standing = distance.copy()
            standing.ravel()[pairs] = after
            if nodes:
                standing[failing] = standing[:, failing] = np.inf
            loads = self._leaving.loads(standing, self.demands, len(graph.source), gone)
            found.unrouted[index] = loads.unrouted
            found.bottleneck[index], found.utilisation[index] = loads.bottleneck(self.capacity)

    def _pairs_over(self, links: Array) -> Array:
        """source · N + target of all pairs with a shortest path over one of the links, in ascending order."""
        distance, count = self.distance, self.graph.nodes
        found = np.zeros(count * count, np.bool_)
        for link in links:
            tail, head, cost = self.graph.source[link], self.graph.target[link], self.graph.cost[link]
            rows = np.flatnonzero(np.isfinite(distance[:, tail]) & (distance[:, tail] + cost == distance[:, head]))
            columns = np.flatnonzero(np.isfinite(distance[head]) & (cost + distance[head] == distance[tail]))
            over = distance[rows, tail][:, None] + (cost + distance[head, columns]) == distance[np.ix_(rows, columns)]
            row, column = np.nonzero(over)
            found[rows[row] * count + columns[column]] = True
        return np.flatnonzero(found)

    def _found_again(self, pairs: Array, gone: Array) -> Array:
        """The distances of these pairs without the failed links. Restores the table afterwards."""
        table, count = self.distance.ravel(), self.graph.nodes
        before = table[pairs]
        source, target = pairs // count, pairs % count
        # Neighbours on the first axis [K, P]: the minimum over them is then vectorised over pairs.
        near = source * count + self._entering.node.T[:, target]
        cost = np.where(gone[self._entering_link.T[:, target]], np.inf, self._entering.cost.T[:, target])
        table[pairs] = now = np.full(len(pairs), np.inf)
        while True:
            nearer = (table[near] + cost).min(axis=0)
            if np.array_equal(nearer, now):
                break
            table[pairs] = now = nearer
        table[pairs] = before
        return now


def _compare(pairs: Array, before: Array, after: Array, nodes: int, found: Consequences, index: int) -> None:
    longer = np.isfinite(after) & (after > before)
    found.cut_pairs[index] = np.isinf(after).sum()
    found.longer_pairs[index] = longer.sum()
    found.extra_cost[index] = (after[longer] - before[longer]).astype(np.int64).sum()
    if longer.any():
        stretch = np.where(longer, after / before, 1.0)
        worst = int(stretch.argmax())
        found.worst_stretch[index] = stretch[worst]
        found.worst_source[index], found.worst_target[index] = divmod(int(pairs[worst]), nodes)


def scenarios_of(things: int, depth: int, most: int = MOST_SCENARIOS, seed: int = 0) -> tuple[Array, int]:
    """All ways in which `depth` of `things` fail, or `most` of them drawn by the seed; and their total number."""
    if depth not in (1, 2):
        raise InvalidInput(f"depth must be 1 (N−1) or 2 (N−2), got {depth}", reason="SCENARIOS")
    if not 1 <= most <= MOST_SCENARIOS:
        raise InvalidInput(f"most must be 1 to {MOST_SCENARIOS} scenarios, got {most}", reason="SCENARIOS")
    total = comb(things, depth)
    if total <= most:
        return np.array(list(_combinations(things, depth)), np.int32).reshape(-1, depth), total
    rng = np.random.default_rng([seed, things, depth])
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < most:
        drawn.setdefault(tuple(sorted(rng.choice(things, depth, replace=False).tolist())))
    return np.array(sorted(drawn), np.int32), total


def _combinations(things: int, depth: int) -> Iterator[tuple[int, ...]]:
    return combinations(range(things), depth)
