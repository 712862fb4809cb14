"""The plug-in `mesh`: tasks that compute a segment's distances, consequences of failures, or disjoint paths."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.plugins import Plugin
from parlmesh.types import Array

from .disjoint_paths import disjoint_paths
from .failures import MOST_SCENARIOS, Failures
from .graph import Graph
from .mesh_limits import MOST_PAIRS
from .path_distances import all_distances
from .segments import MOST_MEMBERS
from .traffic import Demands

SEGMENT, FAILURES, PATHS = "mesh_segment", "mesh_failures", "mesh_paths"


class Attempt(Protocol):
    """The part of an attempt's context used here."""

    def check(self) -> None:
        """Raises when the result is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON object and named arrays."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)


class SegmentHandler:
    """Parameters: nodes; tensors: a graph. The answer has the distances `inside` [n, n]."""

    kind = SEGMENT
    runs_in = "thread"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Attempt) -> Answer:
        """Computes one segment."""
        graph = Graph.from_tensors(_whole(parameters, "nodes", 1, MOST_MEMBERS), tensors)
        return Answer(tensors={"inside": all_distances(graph)})


class FailuresHandler:
    """Parameters: nodes, and `fail` (cables or nodes); tensors: a graph, `scenarios` [S, K] and, for traffic, demands.

    Distances without failures are cached for the next task with the same mesh.
    """

    kind = FAILURES
    runs_in = "thread"

    def __init__(self) -> None:
        self._known: tuple[bytes, Failures] | None = None

    def reset(self) -> None:
        """Forgets the mesh."""
        self._known = None

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Attempt) -> Answer:
        """Evaluates the scenarios; checks for cancellation before each."""
        nodes = _whole(parameters, "nodes", 2, 2000)
        graph = Graph.from_tensors(nodes, tensors)
        scenarios = tensors.get("scenarios")
        if scenarios is None or scenarios.ndim != 2 or scenarios.dtype.kind != "i" or len(scenarios) > MOST_SCENARIOS:
            raise InvalidInput(f"scenarios must be up to {MOST_SCENARIOS} rows of whole numbers")
        fail = parameters.get("fail", "cables")
        if fail not in ("cables", "nodes"):
            raise InvalidInput(f"fail must be cables or nodes, got {fail!r}")
        key = b"".join(tensors[name].tobytes() for name in sorted(tensors) if name != "scenarios")
        known = self._known
        if known is None or known[0] != key:
            known = self._known = (key, Failures(graph, *_traffic(nodes, len(graph.source), tensors)))
        # Two slots may run at once, and computing a scenario changes the table.
        failures = known[1].apart()
        return Answer(tensors=failures.consequences(scenarios, fail == "nodes", context.check).tensors())


class PathsHandler:
    """Parameters: nodes, paths, and `apart` (share no cables, or no nodes); tensors: a graph, `pairs` [P, 2]."""

    kind = PATHS
    runs_in = "thread"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Attempt) -> Answer:
        """Finds the pairs' paths; checks for cancellation before each pair."""
        graph = Graph.from_tensors(_whole(parameters, "nodes", 2, 10_000), tensors)
        pairs = tensors.get("pairs")
        if pairs is None or pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) > MOST_PAIRS:
            raise InvalidInput(f"pairs must be up to {MOST_PAIRS} rows of two nodes")
        wanted, apart = _whole(parameters, "paths", 1, 16), parameters.get("apart") == "nodes"
        return Answer({"paths": paths_of(graph, pairs, wanted, apart, context.check)})


def paths_of(
    graph: Graph, pairs: Array, wanted: int, apart: bool, check: Callable[[], None] = lambda: None
) -> list[list[dict[str, Any]]]:
    """Every pair's paths: nodes, and cost in units."""
    found = []
    for source, target in pairs.tolist():
        check()
        paths = disjoint_paths(graph, source, target, wanted, nodes=apart)
        found.append([{"nodes": list(path.nodes), "cost": path.cost} for path in paths])
    return found


def _traffic(nodes: int, links: int, tensors: dict[str, Array]) -> tuple[Demands | None, Array | None]:
    if "volume" not in tensors:
        return None, None
    try:
        demands = Demands(tensors["from"], tensors["to"], tensors["volume"])
        capacity = tensors["capacity"]
    except KeyError as error:
        raise InvalidInput(f"demands need the tensors from, to, volume and capacity: no {error}") from None
    ends = np.concatenate((demands.source, demands.target))
    if demands.volume.shape != demands.source.shape or demands.source.shape != demands.target.shape:
        raise InvalidInput("from, to and volume must have equal lengths")
    if ends.dtype.kind != "i" or (len(ends) and not (ends.min() >= 0 and ends.max() < nodes)):
        raise InvalidInput(f"demands must be between nodes 0 to {nodes - 1}")
    if capacity.shape != (links,) or not (capacity > 0).all():
        raise InvalidInput(f"capacity must be {links} numbers above 0")
    return demands, capacity


def _whole(parameters: dict[str, Any], name: str, least: int, most: int) -> int:
    value = parameters.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}, got {value!r}")
    return value


plugin = Plugin(handlers={SEGMENT: SegmentHandler, FAILURES: FailuresHandler, PATHS: PathsHandler})
