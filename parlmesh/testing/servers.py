"""Real gRPC servers on loopback, in the test's own process."""

import collections
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from parlmesh.errors import Unavailable

if TYPE_CHECKING:
    from parlmesh.rpc.server import Service
    from parlmesh.security import SecurityConfig

_NOT_EPHEMERAL = range(20_000, 32_768)
_TRIES = 100
_given: collections.deque[int] = collections.deque(maxlen=500)


@asynccontextmanager
async def serve(services: "Sequence[Service]", security: "SecurityConfig | None" = None) -> AsyncIterator[str]:
    """Serves on a free port and yields the address; the drain is short, so that a test never waits for a stream."""
    # The processes of a chaos run's slots need this package's histories, and no server.
    from parlmesh.config import ListenConfig
    from parlmesh.rpc.server import FleetServer
    from parlmesh.security import SecurityConfig

    listen = ListenConfig(drain_seconds=0.2)
    async with FleetServer(listen=listen, security=security or SecurityConfig(), services=services) as server:
        server.set_serving(True)
        yield server.address


def free_port() -> int:
    """A port that was free a moment ago; prefer port 0 wherever the bound port can be queried.

    Never one that the system uses for outgoing connections: a restarted server must find its port free. Nor one that
    was given to this process, or to a test in parallel, and is not bound yet.
    """
    for port in random.SystemRandom().sample(_own_ports(), _TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            if port not in _given:
                probe.bind(("127.0.0.1", port))
                _given.append(port)
                return port
    raise Unavailable(f"none of {_TRIES} ports is free")


def _own_ports() -> range:
    """Ports of this pytest worker; each worker has its own."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return _NOT_EPHEMERAL[int(worker) if worker.isdigit() else 0 :: count]
