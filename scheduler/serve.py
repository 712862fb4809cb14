"""A scheduler process from start to end: build, serve, drain."""

import asyncio
import gc

from parlmesh.config import effective
from parlmesh.rpc.task_group import set_within
from parlmesh.telemetry import configure_logging, get_logger
from parlmesh.telemetry.metrics_page import HEALTH_PATH, health_page, serve_metrics
from parlmesh.telemetry.version_metric import tell_build

from .build import Scheduler
from .config import SchedulerConfig
from .process_memory import give_memory_back, keep_memory_together, relax_garbage_collection
from .prometheus_targets import TARGETS_PATH, Targets
from .store.disk_full import RETRY_SECONDS, is_full

log = get_logger("parlmesh.scheduler")


async def serve(config: SchedulerConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` is set."""
    configure_logging(config.log, "scheduler")
    log.info("configured", config=effective(config))
    relax_garbage_collection()
    keep_memory_together()
    scheduler = await _built(config, stop)
    if scheduler is None:
        return
    tell_build("scheduler")
    pages = {
        HEALTH_PATH: health_page(lambda: scheduler.server.serving),
        TARGETS_PATH: Targets(lambda: scheduler.fleet).page,
    }
    page = serve_metrics(config.metrics, pages)
    try:
        await scheduler.start()
        # The objects that exist now are kept: the modules and the rebuilt tasks.
        gc.freeze()
        server = scheduler.server
        event = "serving" if scheduler.leads else "listening"
        log.info(event, address=server.address, port=server.port, metrics_port=page.port if page else None)
        giving = asyncio.create_task(give_memory_back(), name="gives memory back")
        try:
            await scheduler.run(stop)
        finally:
            giving.cancel()
    finally:
        await scheduler.stop()
        if page is not None:
            page.close()
    log.info("stopped")


async def _built(config: SchedulerConfig, stop: asyncio.Event) -> Scheduler | None:
    """Waits while the store's disk is full, as a running scheduler does; None if told to stop in the meantime."""
    told = False
    while not stop.is_set():
        try:
            return Scheduler(config)
        except OSError as error:
            if not is_full(error, config.store.path):
                raise
            if not told:
                log.error("waiting_for_space", path=str(config.store.path), error=str(error))
            told = True
        await set_within(stop, RETRY_SECONDS)
    return None
