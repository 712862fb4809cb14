"""A fleet in this process: nodes answer by the plug-in's own handlers, and a test says which answers never come."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from parlmesh.client import ActorInfo, ActorState, TaskRequest
from parlmesh.errors import FleetError, Unavailable


class Killed(BaseException):
    """The loop's process ends here."""


@dataclass
class Answer:
    """As much of an outcome as a loop looks at."""

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
