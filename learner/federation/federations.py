"""All federations of a learner: started on request, found again on disk after a restart."""

import asyncio
import importlib.util
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc.aio
from pydantic import ValidationError

from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import (
    AlreadyExists,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning_task import make_task
from parlmesh.security.identity import check_name
from parlmesh.telemetry import get_logger
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

from ..config import FederationsConfig
from ..policies.registry import PolicyRegistry
from . import definition_file
from .connected_nodes import NodesFound, list_nodes
from .coordinator import Federation
from .rules.phase import Phase
from .transient_failures import sentence_of

log = get_logger("parlmesh.learner")

_READ_AGAIN_SECONDS = 1.0


class Federations:
    """A context manager that owns the federations' work."""

    def __init__(self, folder: Path, channel: grpc.aio.Channel, config: FederationsConfig) -> None:
        self._folder = folder
        self._channel = channel
        self._scheduler = SchedulerServiceStub(channel)
        self._config = config
        self._federations: dict[str, Federation] = {}
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        # Why folders cannot be read: some are damaged, some may be readable soon.
        self._damaged: dict[str, str] = {}
        self._unread: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        for folder in sorted(self._folder.glob(f"{definition_file.PARTIAL}*")):
            self._tidy(folder)
        found = [path for path in self._folder.glob("*") if definition_file.may_be_in(path)]
        for federation in sorted(filter(None, map(self._read, found)), key=lambda each: each.created):
            self._launch(federation)
        if self._unread:
            self._own(self._read_on())
        return self

    def _read(self, folder: Path) -> Federation | None:
        """Reads one federation. However broken it is, the learner continues without it."""
        try:
            federation = Federation(folder, self._channel, self._list_nodes)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            # Waiting does not cure these.
            self._damage(folder, error)
        except (OSError, MemoryError) as error:
            if self._unread.get(folder.name) != sentence_of(error):
                log.warning("federation_unread", path=str(folder), cause=sentence_of(error))
            self._unread[folder.name] = sentence_of(error)
        except Exception as error:
            self._damage(folder, error)
        else:
            self._unread.pop(folder.name, None)
            self._federations[federation.federation_id] = federation
            return federation
        return None

    def _damage(self, folder: Path, error: Exception) -> None:
        self._unread.pop(folder.name, None)
        self._damaged[folder.name] = sentence_of(error)
        log.error("federation_damaged", path=str(folder), message=sentence_of(error))

    async def _read_on(self) -> None:
        """Retries federations that the disk could not read at first."""
        while self._unread:
            await asyncio.sleep(_READ_AGAIN_SECONDS)
            for name in sorted(self._unread):
                federation = self._read(self._folder / name)
                if federation is not None:
                    log.info("federation_read", federation_id=federation.federation_id)
                    self._launch(federation)

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
        """A federation by its id; empty = the most recently started one."""
        if not federation_id and self._federations:
            return max(self._federations.values(), key=lambda federation: federation.created)
        if federation_id not in self._federations:
            self._check_read(federation_id)
            if federation_id in self._damaged:
                text = f"federation {federation_id} is damaged on disk: {self._damaged[federation_id]}"
                raise FailedPrecondition(text, reason="FEDERATION_DAMAGED")
            known = ", ".join(sorted(self._federations)) or "none"
            raise NotFound(f"federation {federation_id!r} is not here; there are: {known}", reason="UNKNOWN_FEDERATION")
        return self._federations[federation_id]

    def all(self) -> Sequence[Federation]:
        """All federations that could be read, in no order."""
        return list(self._federations.values())

    def policies(self, run_id: str, otherwise: Callable[[str], PolicyRegistry]) -> PolicyRegistry:
        """The policies of the federation with this id, if it trains one; otherwise those of the run."""
        federation = self._federations.get(run_id)
        found = federation.policies if federation is not None else None
        return found if found is not None else otherwise(run_id)

    async def start(self, federation_id: str, values: Mapping[str, Any]) -> Federation:
        """Starts a federation; the same id with the same configuration returns the existing one."""
        async with self._starting:
            return await self._start(federation_id, values)

    async def _start(self, federation_id: str, values: Mapping[str, Any]) -> Federation:
        federation_id = federation_id or f"federation-{time.time_ns() // 1_000_000}"
        check_name(federation_id)
        try:
            config = FederationConfig.model_validate(dict(values))
        except ValidationError as error:
            raise InvalidInput(describe_errors(FederationConfig, error).message, reason="CONFIG") from error
        if config.secure.enabled and importlib.util.find_spec("cryptography") is None:
            text = "secure.enabled needs the package cryptography: pip install 'parlmesh[security]'"
            raise InvalidInput(text, reason="MISSING_PACKAGE")
        known = self._federations.get(federation_id)
        if known is not None:
            if known.config == config:
                return known
            raise AlreadyExists(
                f"federation {federation_id} exists with another configuration", reason="ALREADY_EXISTS"
            )
        self._check_read(federation_id)
        if federation_id in self._damaged:
            raise AlreadyExists(
                f"federation {federation_id} is damaged on disk: {self._damaged[federation_id]}",
                reason="FEDERATION_DAMAGED",
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
        try:
            await asyncio.to_thread(definition_file.create, folder, federation_id, config, first)
            federation = self._federations[federation_id] = Federation(folder, self._channel, self._list_nodes)
        except OSError as error:
            text = f"federation {federation_id} cannot be written: {sentence_of(error)}"
            raise Unavailable(text, reason="DISK") from error
        self._launch(federation)
        log.info("federation_started", federation_id=federation_id, task=config.task, rounds=config.rounds)
        return federation

    def _check_read(self, federation_id: str) -> None:
        if federation_id in self._unread:
            text = f"federation {federation_id} cannot be read at present: {self._unread[federation_id]}"
            raise Unavailable(text, reason="DISK")

    def _check_room(self) -> None:
        running = sum(federation.core.phase is not Phase.ENDED for federation in self._federations.values())
        if running >= self._config.max_running:
            raise ResourceExhausted(
                f"{running} federations are running; the limit is {self._config.max_running} (federations.max_running)",
                reason="FEDERATION_COUNT",
            )

    def _launch(self, federation: Federation) -> None:
        self._own(self._run(federation))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, federation: Federation) -> None:
        try:
            await federation.run()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            log.exception("federation_failed", error, federation_id=federation.federation_id)
            try:
                federation.fail(f"a defect ended it: {type(error).__name__}")
            except FleetError as again:
                log.error("federation_failure_not_kept", federation_id=federation.federation_id, cause=again.message)

    @staticmethod
    def _tidy(folder: Path) -> None:
        try:
            definition_file.remove(folder)
        except OSError as error:
            log.warning("partial_federation_stays", path=str(folder), cause=sentence_of(error))

    async def _list_nodes(self, config: FederationConfig) -> NodesFound:
        return await list_nodes(self._scheduler, config.selection, secure=config.secure.enabled)
