"""Anomalies on the nodes of a mesh, found by the detectors of the plug-in `mapek`, which keep their state on the node.

This module only uses the names of its task kinds: the loop is a higher layer and is not needed here.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlmesh.client import ActorState, Outcome, PARLController, Placement, TaskRequest
from parlmesh.errors import InvalidInput

MONITOR, ANALYSE = "mapek_monitor", "mapek_analyse"
OWNER = "mesh-optimizer"
"""Detector states are stored per owner; a loop has its own."""
THRESHOLDS: Sequence[Mapping[str, Any]] = (
    {"metric": "rtt_ms.*", "above": 87, "clear": 70},
    {"metric": "loss_percent.*", "above": 1.6, "clear": 0.5, "severity": "critical"},
    {"metric": "cpu_percent", "above": 80, "clear": 65},
    {"metric": "memory_percent", "above": 85, "clear": 75},
    {"metric": "disk_percent", "above": 90, "clear": 85, "severity": "critical"},
    {"metric": "error_percent", "above": 5, "clear": 2, "severity": "critical"},
)
_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node to check. Without metrics, its own actor reads them."""

    id: str
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A symptom on a node."""

    node: str
    metric: str
    value: float
    severity: str
    why: str


class Anomalies(list[Anomaly]):
    """The anomalies found, in the order of the nodes. Nodes in `unknown` could not be checked, with the reason."""

    def __init__(self, found: Iterable[Anomaly], unknown: Mapping[str, str]) -> None:
        super().__init__(found)
        self.unknown = dict(unknown)


async def detected(
    controller: PARLController,
    nodes: Sequence[Node],
    thresholds: Sequence[Mapping[str, Any]] = THRESHOLDS,
    metrics: Sequence[str] = ("*",),
) -> Anomalies:
    """Reads nodes without metrics, then analyses all, each on its own node's actor or, without one, on any actor."""
    if len({node.id for node in nodes}) != len(nodes):
        raise InvalidInput("nodes must be different, and one is given twice")
    actors = await controller.list_actors()
    present = {actor.node_id for actor in actors if actor.state == ActorState.READY}
    given = {node.id: dict(node.metrics) for node in nodes if node.metrics is not None}
    unknown: dict[str, str] = {}
    unread = [node.id for node in nodes if node.id not in given]
    absent = [node for node in unread if node not in present]
    unknown |= dict.fromkeys(absent, "the node has no ready actor, and no metrics were given")
    read = [node for node in unread if node in present]
    outcomes = await _asked(controller, [_request(MONITOR, node, {"node": node}, True) for node in read])
    for node, outcome in zip(read, outcomes, strict=True):
        told = (outcome.value or {}).get("metrics")
        if outcome.ok and isinstance(told, dict):
            given[node] = told
        else:
            unknown[node] = f"it could not be read: {outcome.error}"
    judged = [node.id for node in nodes if node.id in given]
    common = {"loop": OWNER, "thresholds": list(thresholds), "detection": {"metrics": list(metrics)}}
    outcomes = await _asked(
        controller,
        [
            _request(
                ANALYSE,
                node,
                {"node": node, "reading": secrets.token_hex(8), "metrics": given[node], **common},
                node in present,
            )
            for node in judged
        ],
    )
    found: list[Anomaly] = []
    for node, outcome in zip(judged, outcomes, strict=True):
        symptoms = (outcome.value or {}).get("symptoms")
        if not outcome.ok or not isinstance(symptoms, list):
            unknown[node] = f"it could not be analysed: {outcome.error}"
            continue
        found += [
            Anomaly(node, str(each["metric"]), float(each["value"]), str(each["severity"]), str(each["why"]))
            for each in symptoms
            if each.get("present", True)
        ]
    return Anomalies(found, unknown)


def _request(kind: str, node: str, parameters: Mapping[str, Any], there: bool) -> TaskRequest:
    placement = Placement(node_id=node) if there else Placement()
    return TaskRequest(kind, parameters, placement=placement, queue_timeout=_SECONDS, run_timeout=_SECONDS)


async def _asked(controller: PARLController, requests: list[TaskRequest]) -> list[Outcome]:
    return await controller.execute_parallel(requests, timeout=2 * _SECONDS + 1.0) if requests else []
