"""PARLMeshOptimizer: routes, what-if analyses and anomalies of a whole mesh, on a fleet if that pays off.

async with PARLController() as controller:
    await controller.initialize(4, actor={"plugins": ["mesh"]})
    table = await PARLMeshOptimizer(controller).optimize_routes_parallel(read_mesh(Path("mesh.gml")))
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlmesh.client import Outcome, PARLController, TaskRequest
from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput
from parlmesh.types import Array

from .anomalies import THRESHOLDS, Anomalies, Node, detected
from .disjoint_paths import Path, pairs_array
from .failures import MOST_NODES, MOST_SCENARIOS, Consequences, Failures, scenarios_of
from .fleet_or_local import THREAD_PAYS_NODES, Job, Progress, Where, performed, silent
from .graph import Graph
from .link_costs import Metric, chosen_metric
from .measured_mesh import Mesh
from .path_distances import all_distances, checked_inside, merged, segments_of
from .plugin import FAILURES, PATHS, SEGMENT, paths_of
from .routes import RoutingTable, next_hops
from .segments import MOST_MEMBERS, SEGMENTS_PAY_NODES, segment_labels
from .traffic import Demands, capacities

_PIECES = 64


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Consequences of scenarios, and the mesh and scenarios they belong to."""

    mesh: Mesh
    graph: Graph
    fail: str
    """cables or nodes."""
    scenarios: Array
    """[S, K], padded with -1."""
    possible: int
    """Number of possible scenarios; more than S when only some were drawn."""
    consequences: Consequences
    made: dict[str, Any]

    def names(self, index: int) -> list[str]:
        """The elements that fail in a scenario."""
        failing = [int(each) for each in self.scenarios[index] if each >= 0]
        return [self.mesh.nodes[each] if self.fail == "nodes" else self.mesh.cable_name(each) for each in failing]

    def bottleneck(self, index: int) -> str:
        """The most utilised link in a scenario; empty without demands."""
        link = int(self.consequences.bottleneck[index])
        if link < 0:
            return ""
        return f"{self.mesh.nodes[self.graph.source[link]]} → {self.mesh.nodes[self.graph.target[link]]}"


class PARLMeshOptimizer:
    """Uses the controller's fleet, if given, whose actors need the plug-in `mesh`."""

    def __init__(self, controller: PARLController | None = None) -> None:
        self._controller = controller

    async def optimize_routes_parallel(
        self,
        mesh: Mesh,
        metric: Metric | str = Metric.AUTO,
        *,
        where: Where | str = Where.AUTO,
        most_members: int = MOST_MEMBERS,
        progress: Progress = silent,
    ) -> RoutingTable:
        """The best paths between all nodes."""
        chosen = chosen_metric(mesh, Metric(metric))
        graph = Graph.of(mesh, chosen)
        started = time.perf_counter()
        distance, made = await self.distances(graph, where=where, most_members=most_members, progress=progress)
        made["distance_seconds"] = round(time.perf_counter() - started, 4)
        hops = await asyncio.to_thread(next_hops, graph, distance)
        made["seconds"] = round(time.perf_counter() - started, 4)
        return RoutingTable(mesh.nodes, chosen.value, distance, hops, made)

    async def distances(
        self,
        graph: Graph,
        *,
        where: Where | str = Where.AUTO,
        most_members: int = MOST_MEMBERS,
        progress: Progress = silent,
    ) -> tuple[Array, dict[str, Any]]:
        """Least costs between all nodes, and how they were found.

        AUTO computes here: computing all distances takes less time than fetching segments from a fleet. FLEET turns
        every segment into a task and merges the results.
        """
        why = "computing distances here is faster than fetching them from a fleet"
        if Where(where) is Where.FLEET:
            return await self._by_segments(graph, Where.FLEET, most_members, progress)
        if graph.nodes < SEGMENTS_PAY_NODES:
            small = graph.nodes <= THREAD_PAYS_NODES
            found = all_distances(graph) if small else await asyncio.to_thread(all_distances, graph)
            return found, {"where": "here", "why": why, "segments": 1}
        distance, made = await self._by_segments(graph, Where.HERE, most_members, progress)
        return distance, {**made, "why": why}

    async def _by_segments(
        self, graph: Graph, where: Where, most: int, progress: Progress
    ) -> tuple[Array, dict[str, Any]]:
        labels = await asyncio.to_thread(segment_labels, graph, most)
        segments = segments_of(graph, labels)
        parts = [graph.within(segment.members) for segment in segments]
        wrong: list[str] = []

        def read(part: Graph, outcome: Outcome) -> Array:
            try:
                return checked_inside(part, outcome.tensors.get("inside", np.zeros(0)), f"actor {outcome.actor_id}")
            except InvalidInput as error:
                # A wrong answer only costs a recomputation; the table stays correct.
                wrong.append(error.message)
                return all_distances(part)

        job = Job(
            parts,
            all_distances,
            lambda part: TaskRequest(SEGMENT, {"nodes": part.nodes}, part.tensors()),
            read,
            lambda part: part.nodes,
        )
        inside, made = await performed(job, self._controller, where, progress)
        distance = await asyncio.to_thread(merged, graph, labels, segments, inside)
        border = sum(len(segment.border) for segment in segments)
        return distance, {**made, "segments": len(segments), "border_nodes": border, "wrong_answers": wrong}

    async def what_if_parallel(
        self,
        mesh: Mesh,
        metric: Metric | str = Metric.AUTO,
        *,
        depth: int = 1,
        fail: str = "cables",
        most: int = MOST_SCENARIOS,
        seed: int = 0,
        demands: Demands | None = None,
        capacity: float | None = None,
        where: Where | str = Where.AUTO,
        progress: Progress = silent,
    ) -> WhatIf:
        """All single failures (`depth` 1) or all pairs (2), or `most` of them, drawn by the seed."""
        if fail not in ("cables", "nodes"):
            raise InvalidInput(f"fail must be cables or nodes, got {fail!r}", reason="SCENARIOS")
        if len(mesh.nodes) > MOST_NODES:
            raise InvalidInput(f"{mesh.name} has {len(mesh.nodes)} nodes; scenarios take up to {MOST_NODES}")
        graph = Graph.of(mesh, Metric(metric))
        scenarios, possible = scenarios_of(len(mesh.nodes) if fail == "nodes" else mesh.cables, depth, most, seed)
        tensors = graph.tensors()
        room = None if demands is None else capacities(mesh, graph, capacity)
        if demands is not None and room is not None:
            tensors |= {"from": demands.source, "to": demands.target, "volume": demands.volume, "capacity": room}
        parameters = {"nodes": graph.nodes, "fail": fail}
        failures: list[Failures] = []

        def here(piece: Array) -> Consequences:
            if not failures:
                failures.append(Failures(graph, demands, room))
            return failures[0].consequences(piece, fail == "nodes")

        job = Job(
            _pieces(scenarios),
            here,
            lambda piece: TaskRequest(FAILURES, parameters, {**tensors, "scenarios": piece}),
            lambda piece, outcome: _consequences(outcome, len(piece)),
            len,
        )
        started = time.perf_counter()
        parts, made = await performed(job, self._controller, Where(where), progress)
        made["seconds"] = round(time.perf_counter() - started, 4)
        return WhatIf(mesh, graph, fail, scenarios, possible, Consequences.joined(parts), made)

    async def disjoint_paths_parallel(
        self,
        mesh: Mesh,
        pairs: Sequence[tuple[str, str]],
        paths: int = 2,
        metric: Metric | str = Metric.AUTO,
        *,
        apart: str = "cables",
        where: Where | str = Where.AUTO,
        progress: Progress = silent,
    ) -> tuple[list[list[Path]], dict[str, Any]]:
        """For every pair, up to `paths` paths with the least total cost that share no cable, or no node."""
        if apart not in ("cables", "nodes"):
            raise InvalidInput(f"apart must be cables or nodes, got {apart!r}", reason="PATHS")
        graph = Graph.of(mesh, Metric(metric))
        number = {node: index for index, node in enumerate(mesh.nodes)}
        for pair in pairs:
            for end in pair:
                if end not in number:
                    mesh.number(end)
        numbered = pairs_array([(number[one], number[other]) for one, other in pairs])
        parameters = {"nodes": graph.nodes, "paths": paths, "apart": apart}
        job: Job[Array, list[list[dict[str, Any]]]] = Job(
            _pieces(numbered),
            lambda piece: paths_of(graph, piece, paths, apart == "nodes"),
            lambda piece: TaskRequest(PATHS, parameters, {**graph.tensors(), "pairs": piece}),
            lambda piece, outcome: _paths(outcome, len(piece)),
            len,
        )
        started = time.perf_counter()
        parts, made = await performed(job, self._controller, Where(where), progress)
        made["seconds"] = round(time.perf_counter() - started, 4)
        found = [
            [Path(tuple(map(int, path["nodes"])), int(path["cost"])) for path in each]
            for part in parts
            for each in part
        ]
        return found, made

    async def detect_anomalies_parallel(
        self, nodes: Sequence[Node | str], thresholds: Sequence[Mapping[str, Any]] = THRESHOLDS
    ) -> Anomalies:
        """Symptoms and anomalies on the nodes, by thresholds and detectors. Nodes without an answer are `unknown`.

        Needs a fleet whose actors have the plug-in `mapek`. A node without given metrics is read by its own actor.
        """
        if self._controller is None:
            raise FailedPrecondition("there is no fleet; only actors can check nodes", reason="NOT_CONNECTED")
        wanted = [Node(node) if isinstance(node, str) else node for node in nodes]
        return await detected(self._controller, wanted, thresholds)


def _pieces(rows: Array) -> list[Array]:
    return np.array_split(rows, min(_PIECES, len(rows))) if len(rows) else []


def _consequences(outcome: Outcome, scenarios: int) -> Consequences:
    """The answer, checked for its shapes and types only."""
    expected = Consequences.empty(scenarios)
    found = {}
    for name, column in expected.tensors().items():
        told = outcome.tensors.get(name)
        if told is None or told.shape != column.shape or told.dtype != column.dtype:
            raise FleetError(f"actor {outcome.actor_id} returned no {name} for {scenarios} scenarios", reason="ANSWER")
        found[name] = told
    return Consequences(**found)


def _paths(outcome: Outcome, pairs: int) -> list[list[dict[str, Any]]]:
    paths = (outcome.value or {}).get("paths")
    if not isinstance(paths, list) or len(paths) != pairs:
        raise FleetError(f"actor {outcome.actor_id} returned no paths for {pairs} pairs", reason="ANSWER")
    return paths
