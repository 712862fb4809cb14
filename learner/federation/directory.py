"""All federations of a learner: started on request, found again on disk after a restart."""

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc.aio
from pydantic import ValidationError

from parlmesh.config.complaints import describe_errors
from parlmesh.errors import AlreadyExists, FleetError, InvalidInput, NotFound, ResourceExhausted, Unavailable
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning import make_task
from parlmesh.federation.virtual_nodes import count_in, nodes_of
from parlmesh.rpc import error_from_rpc
from parlmesh.security.identity import check_name
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as scheduler_pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from ..config import FederationsConfig
from ..registry import PolicyRegistry
from .federation import Federation
from .requests import FIT
from .rounds import Phase

log = get_logger("parlmesh.learner")

_CALL_SECONDS = 10.0


class Federations:
    """Used as a context manager, which owns the federations' work."""

    def __init__(self, folder: Path, channel: grpc.aio.Channel, config: FederationsConfig) -> None:
        self._folder = folder
        self._channel = channel
        self._scheduler = SchedulerServiceStub(channel)
        self._config = config
        self._federations: dict[str, Federation] = {}
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        for folder in sorted(self._folder.glob(".partial-*")):
            shutil.rmtree(folder)
        found = [path for path in self._folder.glob("*") if (path / "federation.json").exists()]
        for folder in found:
            try:
                federation = Federation(folder, self._channel, self._list_nodes)
            except FleetError as error:
                log.error("federation_damaged", path=str(folder), message=error.message)
                continue
            self._federations[federation.federation_id] = federation
        for federation in sorted(self._federations.values(), key=lambda each: each.created):
            self._launch(federation)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, traceback)
        finally:
            for federation in self._federations.values():
                federation.close()

    def get(self, federation_id: str) -> Federation:
        """One of them; empty = the one started last."""
        if not federation_id and self._federations:
            return max(self._federations.values(), key=lambda federation: federation.created)
        if federation_id not in self._federations:
            known = ", ".join(sorted(self._federations)) or "none"
            raise NotFound(f"federation {federation_id!r} is not here; there are: {known}", reason="UNKNOWN_FEDERATION")
        return self._federations[federation_id]

    def policies(self, run_id: str, otherwise: Callable[[str], PolicyRegistry]) -> PolicyRegistry:
        """The policies of a federation that trains one, by its id; of a run in every other case."""
        federation = self._federations.get(run_id)
        found = federation.policies if federation is not None else None
        return found if found is not None else otherwise(run_id)

    async def start(self, federation_id: str, values: Mapping[str, Any]) -> Federation:
        """Begins one; the same id with the same configuration is the same federation."""
        federation_id = federation_id or f"federation-{time.time_ns() // 1_000_000}"
        check_name(federation_id)
        try:
            config = FederationConfig.model_validate(dict(values))
        except ValidationError as error:
            raise InvalidInput(describe_errors(FederationConfig, error).message, reason="CONFIG") from error
        known = self._federations.get(federation_id)
        if known is not None:
            if known.config == config:
                return known
            raise AlreadyExists(
                f"federation {federation_id} exists with another configuration", reason="ALREADY_EXISTS"
            )
        self._check_room()
        task = await asyncio.to_thread(make_task, config.task, config.settings, self._config.learning_tasks)
        first = await asyncio.to_thread(task.first, config.seed)
        size = sum(tensor.nbytes for tensor in first.tensors.values())
        if size > self._config.max_model_bytes:
            raise ResourceExhausted(
                f"the model has {size} bytes; the limit is {self._config.max_model_bytes}"
                " (federations.max_model_bytes)",
                reason="MODEL_TOO_LARGE",
            )
        folder = self._folder / federation_id
        await asyncio.to_thread(Federation.create, folder, federation_id, config, first)
        federation = self._federations[federation_id] = Federation(folder, self._channel, self._list_nodes)
        self._launch(federation)
        log.info("federation_started", federation_id=federation_id, task=config.task, rounds=config.rounds)
        return federation

    def _check_room(self) -> None:
        running = sum(federation.core.phase is not Phase.ENDED for federation in self._federations.values())
        if running >= self._config.max_running:
            raise ResourceExhausted(
                f"{running} federations are running; the limit is {self._config.max_running} (federations.max_running)",
                reason="FEDERATION_COUNT",
            )

    def _launch(self, federation: Federation) -> None:
        task = self._group.create_task(self._run(federation))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, federation: Federation) -> None:
        try:
            await federation.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.exception("federation_failed", error, federation_id=federation.federation_id)
            federation.fail(f"a defect ended it: {type(error).__name__}")

    async def _list_nodes(self, config: FederationConfig) -> Sequence[str]:
        """Nodes that are ready and can train; none while the scheduler is away."""
        request = scheduler_pb.ListActorsRequest(states=[scheduler_pb.ACTOR_STATE_READY])
        try:
            answer = await self._scheduler.ListActors(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            if not isinstance(error, Unavailable):
                log.warning("list_nodes_failed", error=error.message)
            return ()
        wanted = config.selection.labels.items()
        return sorted(
            {
                node
                for actor in answer.actors
                if FIT in actor.kinds and wanted <= dict(actor.labels).items()
                for node in nodes_of(actor.node_id, count_in(actor.labels))
            }
        )
