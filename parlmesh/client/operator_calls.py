"""An operator's calls: cancel and explain tasks, pause and quarantine actors, save traces."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from parlmesh.errors import InvalidInput
from parlmesh.rpc import pages
from parlmesh.v1 import scheduler_service_pb2 as pb

from .connection import Connection
from .connection.task_parcels import TASKS_PER_REQUEST
from .fleet_info import ActorInfo, actor_from_proto


class FleetOperations(ABC):
    """The calls of a controller that run no task."""

    @abstractmethod
    def _connected(self) -> Connection:
        """The connection; raises the reason if there is none."""

    async def cancel(self, task_ids: Iterable[str]) -> list[str]:
        """Stops tasks and returns the ids of those that had not ended; their outcomes are CANCELLED."""
        calls = self._connected().calls
        names, cancelled = _names("task_ids", task_ids), list[str]()
        for start in range(0, max(1, len(names)), TASKS_PER_REQUEST):
            request = pb.CancelTasksRequest(task_ids=names[start : start + TASKS_PER_REQUEST])
            cancelled += (await calls.call(calls.stub.CancelTasks, request)).cancelled_task_ids
        return cancelled

    async def explain(self, task_id: str) -> str:
        """One sentence that says why a task is where it is."""
        calls = self._connected().calls
        return (await calls.call(calls.stub.ExplainTask, pb.ExplainTaskRequest(task_id=task_id))).explanation

    async def list_actors(self) -> list[ActorInfo]:
        """Every worker the scheduler knows, including those lost in the last minutes."""
        calls = self._connected().calls
        listing = pages(partial(calls.call, calls.stub.ListActors), pb.ListActorsRequest())
        return [actor_from_proto(actor) async for page in listing for actor in page.actors]

    async def pause(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """Pauses actors: they finish their tasks and take no more until resumed. An unknown id raises NotFound and
        changes none."""
        return await self._command(actor_ids, pb.ACTOR_COMMAND_PAUSE)

    async def resume(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """Resumes actors: they take tasks again."""
        return await self._command(actor_ids, pb.ACTOR_COMMAND_RESUME)

    async def drain(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """Drains actors: they finish their tasks, then leave."""
        return await self._command(actor_ids, pb.ACTOR_COMMAND_DRAIN)

    async def reset(self, actor_ids: Iterable[str]) -> list[ActorInfo]:
        """Resets actors: they drop their environments, caches and running tasks, and start again."""
        return await self._command(actor_ids, pb.ACTOR_COMMAND_RESET)

    async def quarantine(self, node_ids: Iterable[str], reason: str) -> list[ActorInfo]:
        """Takes all tasks back from these nodes, and gives them none for the scheduler's quarantine_seconds."""
        return await self._command((), pb.ACTOR_COMMAND_QUARANTINE, node_ids, reason)

    async def release(self, node_ids: Iterable[str]) -> list[ActorInfo]:
        """Ends the quarantine of nodes, and a pause of their actors."""
        return await self._command((), pb.ACTOR_COMMAND_RESUME, node_ids)

    async def rebalance_load(self) -> int:
        """Takes unstarted tasks back from slow or paused workers; returns how many moved."""
        calls = self._connected().calls
        return (await calls.call(calls.stub.RebalanceTasks, pb.RebalanceTasksRequest())).moved_tasks

    async def get_trace(self, *, seconds: int = 60) -> str:
        """The attempts that ended in the last `seconds`, as Chrome's trace-event JSON."""
        if not 1 <= seconds <= 3600:
            raise InvalidInput(f"seconds is {seconds!r}; it must be 1 to 3600", reason="INVALID_WINDOW")
        calls = self._connected().calls
        return (await calls.call(calls.stub.GetTrace, pb.GetTraceRequest(seconds=seconds))).trace_json

    async def save_trace(self, path: str | Path, *, seconds: int = 60) -> Path:
        """Writes the last `seconds` as a trace file for Perfetto or chrome://tracing."""
        trace = await self.get_trace(seconds=seconds)
        file = Path(path)
        await asyncio.to_thread(file.write_text, trace, encoding="utf-8")
        return file

    async def _command(
        self,
        actor_ids: Iterable[str],
        command: pb.ActorCommand.ValueType,
        node_ids: Iterable[str] = (),
        reason: str = "",
    ) -> list[ActorInfo]:
        calls = self._connected().calls
        request = pb.UpdateActorsRequest(
            actor_ids=_names("actor_ids", actor_ids),
            node_ids=_names("node_ids", node_ids),
            command=command,
            reason=reason,
        )
        return [actor_from_proto(actor) for actor in (await calls.call(calls.stub.UpdateActors, request)).actors]


def _names(what: str, given: Iterable[str]) -> list[str]:
    if isinstance(given, str):
        raise InvalidInput(f"{what} is the text {given!r}; it must be a list of ids", reason="INVALID_IDS")
    names = list(given)
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"{what} has {name!r:.60}; every id must be text", reason="INVALID_IDS")
    return names
