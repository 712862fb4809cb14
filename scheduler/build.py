"""The one place where the scheduler's parts are chosen and put together."""

import asyncio
import time

from parlmesh.config import effective
from parlmesh.rpc import FleetServer
from parlmesh.telemetry import configure_logging, get_logger, serve_metrics

from .config import SchedulerConfig
from .core import Core
from .fleet_servicer import FleetServicer
from .registration import services
from .servicer import SchedulerServicer
from .shell import Shell

log = get_logger("parlmesh.scheduler")


def build_shell(config: SchedulerConfig) -> Shell:
    wall_time = time.time()
    # Lease ids go on growing over restarts, because they start from the time of the start.
    core = Core(config, now=time.monotonic(), wall_time=wall_time, lease_floor=int(wall_time) << 32)
    return Shell(config, core, clock=time.monotonic, wall_clock=time.time)


def build_server(config: SchedulerConfig, shell: Shell) -> FleetServer:
    scheduler = SchedulerServicer(shell, config.retries.run_timeout_seconds)
    return FleetServer(
        listen=config.listen, security=config.security, services=services(scheduler, FleetServicer(shell))
    )


async def serve(config: SchedulerConfig, stop: asyncio.Event) -> None:
    """Serves until `stop` is set, then ends every stream and lets the calls in flight finish."""
    configure_logging(config.log, "scheduler")
    log.info("configured", config=effective(config))
    page = serve_metrics(config.metrics)
    shell = build_shell(config)
    server = build_server(config, shell)
    try:
        port = await server.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(shell.run(stop))
            server.set_serving(True)
            log.info("serving", address=server.address, port=port, metrics_port=page.port if page else None)
            await stop.wait()
        server.set_serving(False)
        shell.close()
        await server.drain()
    finally:
        if page is not None:
            page.close()
    log.info("stopped")
