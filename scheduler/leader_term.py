"""One term of a scheduler: a core rebuilt from the store, its shell, and the committer that writes for them."""

import asyncio
import time
from collections.abc import Callable

from parlmesh.errors import FleetError
from parlmesh.telemetry import get_logger

from .blob_folder import folder_of
from .blob_ledger import BlobLedger
from .config import SchedulerConfig
from .core.core import Core
from .process_memory import garbage_collection_paused
from .shell import Shell
from .store import Deposed, Opened, Store
from .store.committer import Committer

log = get_logger("parlmesh.scheduler")


class Term:
    """Lasts from the opening of the store to the end of the process, or until another scheduler leads."""

    def __init__(
        self,
        config: SchedulerConfig,
        store: Store,
        opened: Opened,
        on_health: Callable[[bool], None],
        on_deposed: Callable[[], None],
        trusted: Callable[[], bool],
    ) -> None:
        started, wall_time = time.monotonic(), time.time()
        with garbage_collection_paused():
            if opened.understudy is not None and opened.understudy.whole:
                core = opened.understudy.lead(started, wall_time, opened.lease_floor)
            else:
                core = Core(config, now=started, wall_time=wall_time, lease_floor=opened.lease_floor)
                unreadable = core.recover(opened.batches, started, opened.warm)
                unreadable.tell(config.store.where)
                if unreadable.count:
                    # A new identity makes clients resend tasks that the journal may have lost.
                    store.renew_identity()
        log.info(
            "recovered",
            store=config.store.kind,
            warm=opened.understudy is not None and opened.understudy.whole,
            tasks=len(core.life.tasks),
            unfinished=core.life.statistics.unfinished,
            seconds=round(time.monotonic() - started, 3),
        )
        self._committer = Committer(store, on_health=on_health, on_death=self._fail) if store.durable else None
        self._durable = store.durable
        place, strangers = folder_of(config.blobs, config.store), config.security.enabled
        file = config.store.path if config.store.kind == "sqlite" and config.blobs.folder is None else None
        self._blobs = BlobLedger(config.blobs, place, time.monotonic, strangers=strangers, store=file)
        self._blobs.open(core.life.tasks.values())
        self._on_deposed = on_deposed
        self._abandoned = False
        self.shell = Shell(
            config,
            core,
            clock=time.monotonic,
            wall_clock=time.time,
            committer=self._committer,
            memory_id=store.identity,
            blobs=self._blobs,
            on_failure=lambda: on_health(False),
            trusted=trusted,
        )

    def start(self) -> None:
        if self._committer is not None:
            self._committer.start(asyncio.get_running_loop())

    def abandon(self, error: FleetError) -> None:
        """Fails everything that waits for the store, because none of it will be kept, and ends every stream."""
        self._abandoned = True
        self.shell.close(error)
        if self._committer is not None:
            self._committer.abandon(error)

    async def end(self, seconds: float) -> None:
        """Commits as many decisions as time allows."""
        if self._committer is not None and not await self._committer.close(seconds) and not self._abandoned:
            log.error("stopped_before_commit", batches=self._committer.behind)
        self._blobs.close(forget=not self._durable)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Deposed):
            self._on_deposed()
        else:
            self.shell.fail(error)
