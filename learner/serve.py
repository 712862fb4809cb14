"""A learner process from start to end: build, train and serve, drain."""

import asyncio

from parlmesh.blobs.free_space import place_for_blobs
from parlmesh.config import effective, to_yaml
from parlmesh.durable_files import replace_file
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer
from parlmesh.telemetry import get_logger
from parlmesh.telemetry.metrics_page import HEALTH_PATH, health_page, serve_metrics
from parlmesh.telemetry.version_metric import tell_build

from . import metrics
from .build import EFFECTIVE, build_federations, build_runs, build_services, with_size_limits
from .config import LearnerConfig
from .files.folder_lock import FolderLock
from .services.upload_folder import sweep

log = get_logger("parlmesh.learner")


async def serve(config: LearnerConfig, stop: asyncio.Event) -> None:
    """Trains and serves until `stop`; policies are served even after the training has ended.

    In the mode `federation`, there are no runs: the learner only coordinates federations.
    """
    if config.mode == "fleet":
        config = await asyncio.to_thread(with_size_limits, config)
    log.info("configured", config=effective(config))
    await asyncio.to_thread(sweep, place_for_blobs())
    channel = open_channel(config.scheduler, config.security)
    runs = build_runs(config, channel) if config.mode != "federation" else None
    lock = None
    if runs is not None:
        runs.open()
    else:
        lock = FolderLock(config.run_dir)
    try:
        replace_file(config.run_dir / EFFECTIVE, to_yaml(config).encode())
    except OSError as error:
        # Only for display; no run needs it.
        log.warning("settings_not_written", path=str(config.run_dir / EFFECTIVE), error=str(error))
    stopping = asyncio.Event()
    federations = build_federations(config, channel)
    server = FleetServer(
        listen=config.listen,
        security=config.security,
        services=build_services(config, runs, stopping, federations),
    )
    tell_build("learner")
    page = serve_metrics(config.metrics, {HEALTH_PATH: health_page(lambda: server.serving)})
    watcher = metrics.watch_runs(runs) if runs is not None else None
    try:
        port = await server.start()
        async with federations:
            named = {"run_id": config.run_id} if runs is not None else {}
            log.info("serving", address=f"{config.listen.host}:{port}", port=port, **named, mode=config.mode)
            server.set_serving(True)
            await (runs.keep(stop) if runs is not None else stop.wait())
    finally:
        stopping.set()
        await server.drain()
        await channel.close()
        if watcher is not None:
            metrics.unwatch_runs(watcher)
        if page is not None:
            page.close()
        if lock is not None:
            lock.release()
