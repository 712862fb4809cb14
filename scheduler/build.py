"""The one place where the scheduler's parts are chosen and put together."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from parlmesh.addresses import join_address
from parlmesh.rpc.server import FleetServer
from parlmesh.telemetry import get_logger

from . import metrics
from .config import SchedulerConfig, StoreConfig
from .core.actors.placement import Fleet
from .core.core import Core
from .leader_term import Term
from .shell import Shell
from .standby import Standby
from .store import MemoryStore, Opened, SharedStore, SqliteStore, Store
from .wire.blob_servicer import BlobServicer
from .wire.fleet_servicer import FleetServicer
from .wire.leader_redirect import Seat
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
        compact_bytes=config.compact_bytes,
    )


def build_shared_store(scheduler: SchedulerConfig) -> SharedStore:
    # Only this store needs asyncpg.
    from parlmesh.postgres.connection_settings import Target

    from .store.postgres import PostgresStore

    config = scheduler.store
    password = config.password.get_secret_value() if config.password is not None else ""
    return PostgresStore(
        Target(config.url, password, config.password_file),
        synchronous=config.synchronous,
        compact_records=config.compact_records,
        compact_bytes=config.compact_bytes,
        lease_seconds=config.lease_seconds,
        new_core=lambda: Core(scheduler, now=time.monotonic(), wall_time=time.time()),
        address=config.address or join_address(socket.gethostname(), scheduler.listen.port),
    )


class Scheduler:
    """A scheduler with its store and its server. It leads from the start unless it shares the store."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._shared: SharedStore | None = build_shared_store(config) if config.store.kind == "postgresql" else None
        self._store: Store = self._shared or build_store(config.store)
        self._seat = Seat()
        self._term: Term | None = None
        if self._shared is None:
            try:
                self._begin(self._store.open(time.time()))
            except BaseException:
                self._store.close()
                raise
        self.server = FleetServer(
            listen=config.listen,
            security=config.security,
            services=(
                SchedulerServicer(
                    self._seat,
                    config.retries.run_timeout_seconds,
                    config.fleet_kinds,
                    config.security.quotas.watched_bytes,
                ).service,
                FleetServicer(self._seat).service,
                BlobServicer(self._seat, config.blobs).service,
            ),
        )

    @property
    def shell(self) -> Shell:
        return self._seat.shell

    @property
    def core(self) -> Core:
        return self._seat.shell.core

    @property
    def fleet(self) -> Fleet | None:
        """None while another scheduler leads."""
        return None if self._term is None else self._term.shell.core.life.fleet

    @property
    def leads(self) -> bool:
        return self._term is not None

    async def start(self) -> None:
        """Starts the server, which reports SERVING only if this scheduler leads."""
        await self.server.start()
        if self._term is not None:
            self._term.start()
            self.server.set_serving(True)

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until told to stop. With a shared store it stands by until it is its turn to lead."""
        shared = self._shared
        if shared is None:
            await self.shell.run(stop)
            return
        standby = Standby(shared, self._seat)
        while (opened := await standby.wait(stop)) is not None:
            await self._lead(shared, opened, stop)

    async def stop(self) -> None:
        """Ends the streams, lets calls in flight finish, and commits every decision."""
        self.server.set_serving(False)
        if self._term is not None:
            self._term.shell.close()
        await self.server.drain()
        await self._end(self._config.listen.drain_seconds)
        await asyncio.to_thread(self._store.close)

    async def _lead(self, store: SharedStore, opened: Opened, stop: asyncio.Event) -> None:
        """Leads for one term: until told to stop, or until another scheduler leads."""
        loop, deposed = asyncio.get_running_loop(), asyncio.Event()
        store.keep(
            on_trust=lambda trusted: _tell(loop, self._set_healthy, trusted),
            on_deposed=lambda: _tell(loop, deposed.set),
        )
        # Rebuilding may take long, and the server must refuse callers in the meantime.
        await asyncio.to_thread(self._begin, opened, deposed.set)
        term = self._term
        assert term is not None
        self._seat.take(term.shell, trusted=store.trusted)
        term.start()
        self.server.set_serving(store.trusted())
        log.info("serving", address=self.server.address, port=self.server.port, leader=True)
        running = asyncio.create_task(term.shell.run(stop), name="leads")
        ending = asyncio.create_task(deposed.wait(), name="is deposed")
        try:
            await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not deposed.is_set():
                await running
                return
        finally:
            running.cancel()
            ending.cancel()
            await asyncio.wait({running, ending})
        log.warning("stepping_down")
        metrics.DEPOSITIONS.inc()
        self.server.set_serving(False)
        self._seat.leave()
        term.abandon(self._seat.refusal())
        await self._end(0.0)
        await asyncio.to_thread(store.step_down)

    def _begin(self, opened: Opened, on_deposed: Callable[[], None] = lambda: None) -> None:
        metrics.LEADER.set(1)
        self._term = Term(self._config, self._store, opened, self._set_healthy, on_deposed, self._trusted)
        if self._shared is None:
            self._seat.take(self._term.shell)

    async def _end(self, seconds: float) -> None:
        metrics.LEADER.set(0)
        term, self._term = self._term, None
        if term is not None:
            await term.end(seconds)

    def _trusted(self) -> bool:
        return self._shared is None or self._shared.trusted()

    def _set_healthy(self, healthy: bool) -> None:
        term = self._term
        if term is not None:
            healthy = healthy and term.shell.failure is None and self._trusted()
            term.shell.healthy = healthy
            self.server.set_serving(healthy)


def _tell(loop: asyncio.AbstractEventLoop, receiver: Callable[..., None], *values: object) -> None:
    """Calls `receiver` in the loop, from another thread; does nothing once the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(receiver, *values)
