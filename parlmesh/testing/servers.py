"""Real gRPC servers on loopback, in the test's own process."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from parlmesh.config import ListenConfig
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.security import SecurityConfig

NO_SECURITY = SecurityConfig()


@asynccontextmanager
async def serve(services: Sequence[Service], security: SecurityConfig = NO_SECURITY) -> AsyncIterator[str]:
    """Serves on a free port and yields the address; the drain is short so that a test never waits for a stream."""
    listen = ListenConfig(drain_seconds=0.2)
    async with FleetServer(listen=listen, security=security, services=services) as server:
        server.set_serving(True)
        yield server.address


def free_port() -> int:
    """A port nobody listened on a moment ago; prefer port 0 wherever the bound port can be asked."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
