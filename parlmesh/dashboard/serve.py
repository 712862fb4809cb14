"""Runs the page's process: builds it, serves it, ends it."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from parlmesh.addresses import join_address
from parlmesh.config import effective
from parlmesh.errors import FailedPrecondition
from parlmesh.telemetry import configure_logging, get_logger

from .access import Access
from .app import Site, build
from .config import DashboardConfig
from .fleet_calls import Fleet
from .fleet_history import History
from .live_updates import Pulse

GRACE_SECONDS = 2
NICENESS = 10
"""The page yields to processes that do the work on the same machine."""
log = get_logger("parlmesh.dashboard")


def give_way() -> None:
    """Lowers the priority of this process."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(config: DashboardConfig, stop: asyncio.Event, tell: Callable[[str], None] | None = None) -> None:
    """Serves until `stop` is set; calls `tell` with the address once the page can be opened."""
    configure_logging(config.log, "dashboard")
    log.info("configured", config=effective(config))
    fleet, history = Fleet(config, time.monotonic), History(config.history)
    pulse = Pulse(fleet, history)
    site = Site(config, Access(config), fleet, pulse)
    server = server_of(config, build(site))
    looking = asyncio.create_task(pulse.run(), name="look")
    try:
        with listening(config) as listener:
            port = listener.getsockname()[1]
            log.info("serving", address=url(config, port), port=port)
            if tell is not None:
                tell(url(config, port))
            serving = asyncio.create_task(server.serve(sockets=[listener]), name="serve")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            await asyncio.wait([serving, stopping, looking], return_when=asyncio.FIRST_COMPLETED)
            site.stopping = server.should_exit = True
            stopping.cancel()
            await serving
            if looking.done():
                looking.result()
    finally:
        looking.cancel()
        await asyncio.wait([looking], timeout=GRACE_SECONDS)
        await fleet.close()
        history.close()
    log.info("stopped")


def server_of(config: DashboardConfig, app: Starlette) -> uvicorn.Server:
    """The HTTP server, with TLS if there is a certificate."""
    return _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            # `Access.address` reads the proxy's headers itself.
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            limit_concurrency=500,
            ssl_certfile=str(config.certificate) if config.certificate else None,
            ssl_keyfile=str(config.key) if config.key else None,
        )
    )


def url(config: DashboardConfig, port: int) -> str:
    """The address to open."""
    scheme = "https" if config.certificate else "http"
    prefix = config.prefix.rstrip("/")
    return f"{scheme}://{join_address(config.host, port)}{prefix}/"


def listening(config: DashboardConfig) -> socket.socket:
    """A socket that already listens before its address is announced."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise FailedPrecondition(
            f"cannot listen on {join_address(config.host, config.port)}: {error.strerror}; choose another port",
            reason="CANNOT_LISTEN",
            port=config.port,
        ) from None
    listener.listen(128)
    return listener
