"""Real gRPC servers on loopback, in the test's own process."""

import contextlib
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from parlmesh.config import ListenConfig
from parlmesh.errors import Unavailable
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.security import SecurityConfig

NO_SECURITY = SecurityConfig()
_NOT_EPHEMERAL = range(20_000, 32_768)
_TRIES = 100


@asynccontextmanager
async def serve(services: Sequence[Service], security: SecurityConfig = NO_SECURITY) -> AsyncIterator[str]:
    """Serves on a free port and yields the address; the drain is short so that a test never waits for a stream."""
    listen = ListenConfig(drain_seconds=0.2)
    async with FleetServer(listen=listen, security=security, services=services) as server:
        server.set_serving(True)
        yield server.address


def free_port() -> int:
    """A port nobody listened on a moment ago; prefer port 0 wherever the bound port can be asked.

    Not one of those that the system gives to outgoing connections: a server that is killed and started again must find
    its port free.
    """
    for port in random.SystemRandom().sample(_NOT_EPHEMERAL, _TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Unavailable(f"none of {_TRIES} ports is free")
