"""Links as arrays, for tasks and for scipy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .link_costs import MOST_COST, Metric, costs
from .measured_mesh import Mesh
from .mesh_limits import MOST_LINKS, MOST_NODES


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes 0 … nodes-1; links sorted by source, target and cost, including parallel links."""

    nodes: int
    source: Array
    """int32 [L]."""
    target: Array
    """int32 [L]."""
    cost: Array
    """int64 [L], at least 1."""
    cable: Array
    """int32 [L]."""

    @classmethod
    def of(cls, mesh: Mesh, metric: Metric | str = Metric.AUTO) -> "Graph":
        """The usable links of a mesh, with their costs."""
        kept = [
            (link.source, link.target, cost, link.cable)
            for link, cost in zip(mesh.links, costs(mesh, metric), strict=True)
            if cost is not None
        ]
        columns = np.array(sorted(kept), np.int64).reshape(-1, 4)
        source, target, cable = (columns[:, column].astype(np.int32) for column in (0, 1, 3))
        return cls(len(mesh.nodes), source, target, columns[:, 2], cable)

    def tensors(self) -> dict[str, Array]:
        """The tensors of a task."""
        return {"source": self.source, "target": self.target, "cost": self.cost, "cable": self.cable}

    @classmethod
    def from_tensors(cls, nodes: int, tensors: dict[str, Array]) -> "Graph":
        """A graph from a task's tensors; raises InvalidInput for an invalid one."""
        try:
            source, target, cost, cable = (tensors[name] for name in ("source", "target", "cost", "cable"))
        except KeyError as error:
            raise InvalidInput(f"a graph needs the tensors source, target, cost and cable: no {error}") from None
        if not 1 <= nodes <= MOST_NODES or not len(source) <= MOST_LINKS:
            raise InvalidInput(f"a graph has 1 to {MOST_NODES} nodes and up to {MOST_LINKS} links, got {nodes}")
        if any(array.ndim != 1 or array.shape != source.shape for array in (source, target, cost, cable)) or any(
            array.dtype.kind != "i" for array in (source, target, cost, cable)
        ):
            raise InvalidInput("source, target, cost and cable must be integer arrays of equal length")
        ends = np.concatenate((source, target))
        if len(source) and (ends.min() < 0 or ends.max() >= nodes or cost.min() < 1 or cost.max() > MOST_COST):
            raise InvalidInput(f"links must join nodes 0 to {nodes - 1} and cost 1 to {MOST_COST}")
        return cls(nodes, source, target, cost, cable)

    def simple(self) -> "Graph":
        """Only the cheapest of parallel links."""
        if not len(self.source):
            return self
        first = np.ones(len(self.source), np.bool_)
        first[1:] = (np.diff(self.source) != 0) | (np.diff(self.target) != 0)
        return self.only(first)

    def only(self, kept: Array) -> "Graph":
        """The links selected by a mask or by sorted positions."""
        return Graph(self.nodes, self.source[kept], self.target[kept], self.cost[kept], self.cable[kept])

    def reversed_order(self) -> Array:
        """Positions of the links in the order of `reversed`."""
        found: Array = np.lexsort((self.cost, self.source, self.target))
        return found

    def reversed(self) -> "Graph":
        """The graph with every link reversed."""
        order = self.reversed_order()
        return Graph(self.nodes, self.target[order], self.source[order], self.cost[order], self.cable[order])

    def within(self, members: Array) -> "Graph":
        """The given nodes, renumbered in order, and the links among them."""
        number = np.full(self.nodes, -1, np.int32)
        number[members] = np.arange(len(members), dtype=np.int32)
        kept = (number[self.source] >= 0) & (number[self.target] >= 0)
        return Graph(
            len(members), number[self.source[kept]], number[self.target[kept]], self.cost[kept], self.cable[kept]
        )

    def matrix(self) -> Any:
        """The costs as a scipy sparse array."""
        from scipy.sparse import csr_array

        simple = self.simple()
        starts = np.searchsorted(simple.source, np.arange(self.nodes + 1)).astype(np.int32)
        return csr_array((simple.cost.astype(np.float64), simple.target, starts), shape=(self.nodes, self.nodes))
