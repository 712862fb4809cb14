"""The one place where the scheduler's parts are chosen and put together."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from parlmesh.rpc.server import FleetServer
from parlmesh.telemetry import get_logger

from .blobs import BlobLedger, folder_of
from .config import SchedulerConfig, StoreConfig
from .core.core import Core
from .shell import Shell
from .store import MemoryStore, SqliteStore, Store
from .store.committer import Committer
from .wire.blob_servicer import BlobServicer
from .wire.fleet_servicer import FleetServicer
from .wire.scheduler_servicer import SchedulerServicer

log = get_logger("parlmesh.scheduler")


def build_store(config: StoreConfig) -> Store:
    if config.kind == "memory":
        return MemoryStore()
    return SqliteStore(
        config.path,
        synchronous=config.synchronous,
        repair=config.repair,
        compact_records=config.compact_records,
    )


class Scheduler:
    """A scheduler with its store and its server, rebuilt from what the store remembers."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._store = build_store(config.store)
        started, wall_time = time.monotonic(), time.time()
        opened = self._store.open(wall_time)
        self.core = Core(config, now=started, wall_time=wall_time, lease_floor=opened.lease_floor)
        with garbage_collection_paused():
            unreadable = self.core.recover(opened.batches, started)
        unreadable.tell(str(config.store.path))
        if unreadable.count:
            # Clients are to see that this is another memory, and send again what it may have lost.
            self._store.renew_identity()
        log.info(
            "recovered",
            store=config.store.kind,
            tasks=len(self.core.life.tasks),
            unfinished=self.core.life.statistics.unfinished,
            seconds=round(time.monotonic() - started, 3),
        )
        self._committer = (
            Committer(self._store, on_health=self._set_healthy, on_death=self._fail) if self._store.durable else None
        )
        self._blobs = BlobLedger(config.blobs, folder_of(config.blobs, config.store), time.monotonic)
        self._blobs.open(self.core.life.tasks.values())
        self.shell = Shell(
            config,
            self.core,
            clock=time.monotonic,
            wall_clock=time.time,
            committer=self._committer,
            memory_id=self._store.identity,
            blobs=self._blobs,
            on_failure=lambda: self._set_healthy(False),
        )
        self.server = FleetServer(
            listen=config.listen,
            security=config.security,
            services=(
                SchedulerServicer(self.shell, config.retries.run_timeout_seconds, config.fleet_kinds).service,
                FleetServicer(self.shell).service,
                BlobServicer(self.core, self._blobs, config.blobs).service,
            ),
        )

    async def start(self) -> None:
        if self._committer is not None:
            self._committer.start(asyncio.get_running_loop())
        await self.server.start()
        self.server.set_serving(True)

    async def stop(self) -> None:
        """Ends the streams, lets calls in flight finish, and commits all that was decided."""
        self.server.set_serving(False)
        self.shell.close()
        await self.server.drain()
        if self._committer is not None and not await self._committer.close(self._config.listen.drain_seconds):
            log.error("stopped_before_commit", batches=self._committer.behind)
        self._store.close()
        self._blobs.close(forget=not self._store.durable)

    def _fail(self, error: BaseException) -> None:
        self.shell.fail(error)

    def _set_healthy(self, healthy: bool) -> None:
        healthy = healthy and self.shell.failure is None
        self.shell.healthy = healthy
        self.server.set_serving(healthy)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Where very much is built at once and nothing is thrown away."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
