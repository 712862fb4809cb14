"""The one place where the scheduler's parts are chosen and put together."""

import asyncio
import time

from parlmesh.config import effective
from parlmesh.rpc.server import FleetServer
from parlmesh.telemetry import configure_logging, get_logger
from parlmesh.telemetry.metrics import serve_metrics

from .config import SchedulerConfig, StoreConfig
from .core.core import Core
from .garbage import calm_collector, keep_present, paused_collector
from .shell import Shell
from .store import MemoryStore, SqliteStore, Store
from .store.committer import Committer
from .wire.fleet_servicer import FleetServicer
from .wire.registration import services
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
        with paused_collector():
            left_out = self.core.recover(opened.batches, started)
        left_out.tell(str(config.store.path))
        if left_out.count:
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
        self.shell = Shell(
            config,
            self.core,
            clock=time.monotonic,
            wall_clock=time.time,
            committer=self._committer,
            memory_id=self._store.identity,
            on_failure=lambda: self._set_healthy(False),
        )
        self.server = FleetServer(
            listen=config.listen,
            security=config.security,
            services=services(
                SchedulerServicer(self.shell, config.retries.run_timeout_seconds), FleetServicer(self.shell)
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

    def _fail(self, error: BaseException) -> None:
        self.shell.fail(error)

    def _set_healthy(self, healthy: bool) -> None:
        healthy = healthy and self.shell.failure is None
        self.shell.healthy = healthy
        self.server.set_serving(healthy)


async def serve(config: SchedulerConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` is set."""
    configure_logging(config.log, "scheduler")
    log.info("configured", config=effective(config))
    calm_collector()
    scheduler = Scheduler(config)
    page = serve_metrics(config.metrics)
    try:
        await scheduler.start()
        keep_present()
        server = scheduler.server
        log.info("serving", address=server.address, port=server.port, metrics_port=page.port if page else None)
        await scheduler.shell.run(stop)
    finally:
        await scheduler.stop()
        if page is not None:
            page.close()
    log.info("stopped")
