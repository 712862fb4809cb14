"""A fleet in this process: nodes answer with the plug-in's own handlers, and a test chooses which answers are lost."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from parlmesh.client import ActorInfo, ActorState, PARLController, TaskRequest
from parlmesh.errors import FleetError, Unavailable
from parlmesh.mapek.config import MapekConfig
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.loop import MapekLoop


class Killed(BaseException):
    """The loop's process ends here."""


@dataclass
class Answer:
    """The part of an outcome that a loop uses."""

    value: dict[str, Any] | None
    error: FleetError | None = None


@dataclass
class LocalFleet:
    """Stands in for a controller."""

    handlers: dict[str, Any]
    nodes: Sequence[str]
    dies: Callable[[str, dict[str, Any], str], bool] = lambda kind, parameters, when: False
    """Whether the loop is killed "before" a task is sent or "after" it has run."""
    lost: Callable[[str, dict[str, Any]], bool] = lambda kind, parameters: False
    """Whether a task runs and its answer never comes."""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    quarantined: dict[str, str] = field(default_factory=dict)

    async def list_actors(self) -> list[ActorInfo]:
        now = datetime.now(UTC)
        return [
            ActorInfo(node, node, ActorState.READY, 1, 0, 0, 0, (), {}, now, 1, 0, self.quarantined.get(node, ""))
            for node in self.nodes
        ]

    async def quarantine(self, nodes: list[str], reason: str) -> None:
        self.quarantined |= dict.fromkeys(nodes, reason)
        if self.dies("quarantine", {}, "after"):
            raise Killed

    async def release(self, nodes: list[str]) -> None:
        for node in nodes:
            self.quarantined.pop(node, None)

    async def execute_parallel(self, requests: list[TaskRequest], *, timeout: float) -> list[Answer]:  # noqa: ASYNC109
        await asyncio.sleep(0)
        [request] = requests
        kind, parameters = request.kind, dict(request.parameters)
        self.asked.append((kind, parameters))
        if self.dies(kind, parameters, "before"):
            raise Killed
        try:
            answer = Answer(await self.handlers[kind].run(parameters, {}, None))
        except FleetError as error:
            answer = Answer(None, type(error)(error.message, reason="HANDLER_ERROR"))
        if self.dies(kind, parameters, "after"):
            raise Killed
        return [Answer(None, Unavailable("lost", reason="ACTOR_LOST")) if self.lost(kind, parameters) else answer]


class Readings:
    """The readings a test gives the nodes."""

    kind = "mapek_monitor"
    runs_in = "loop"

    def __init__(self) -> None:
        self.cpu: dict[str, Any] = {}
        self.others: dict[str, float] = {}

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"metrics": {"cpu_percent": self.cpu.get(parameters["node"], 20.0), **self.others}}


def local_config(**changes: Any) -> MapekConfig:
    """CPU above 80 makes the loop pull a lever, or take the given action instead."""
    action = {"kind": "lever", "parameters": {"target": "{node}"}, "verify": {"below": 1000}}
    return MapekConfig.model_validate(
        {
            "dry_run": False,
            "thresholds": [{"metric": "cpu_percent", "above": 80}],
            "rules": [{"symptom": "cpu_percent", "actions": ["pull"], "cooldown_seconds": 3600}],
            "actions": {"pull": action | changes.pop("action", {})},
            "lease_seconds": 0.001,
            **changes,
        }
    )


def local_loop(fleet: LocalFleet, knowledge: Knowledge, **changes: Any) -> MapekLoop:
    clock = changes.pop("clock", None)
    return MapekLoop(cast(PARLController, fleet), local_config(**changes), knowledge, clock=clock)
