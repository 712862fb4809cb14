"""The gRPC server that every service runs: health, reflection, identity, limits, drain. Knows no service."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from parlmesh.addresses import join_address
from parlmesh.config import ListenConfig
from parlmesh.errors import FailedPrecondition, Unavailable
from parlmesh.security import SecurityConfig
from parlmesh.security.authorisation import build_guard
from parlmesh.telemetry import get_logger

from ..credentials import server_credentials
from ..grpc_options import server_options
from . import health
from .gate import Gate

log = get_logger("parlmesh.rpc")


@dataclass(frozen=True)
class Service:
    """A servicer to be served: its full proto name and the generated function that registers it."""

    name: str
    register: Callable[[grpc.aio.Server], None]


class FleetServer:
    """Serves until drained; reports NOT_SERVING until told otherwise."""

    def __init__(self, *, listen: ListenConfig, security: SecurityConfig, services: Sequence[Service]) -> None:
        self._listen = listen
        self._security = security
        self._services = tuple(services)
        self._health = health.HealthServicer([service.name for service in services])
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The bound port; 0 before the start."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port` as bound."""
        return join_address(self._listen.host, self._port)

    async def start(self) -> int:
        """Binds and serves; returns the bound port."""
        if self._server is not None:
            raise FailedPrecondition("the server was started before")
        guard = build_guard(self._security, self._listen.host)
        credentials = server_credentials(self._security)
        self._server = grpc.aio.server(
            interceptors=[Gate(guard, self._security.quotas)],
            options=server_options(self._listen.max_message_bytes, answers_strangers=self._security.answers_strangers),
        )
        for service in self._services:
            service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.name for service in self._services]
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        self._port = self._bind(self._server, credentials)
        await self._server.start()
        log.info("server_started", address=self.address, services=names)
        return self._port

    @property
    def serving(self) -> bool:
        """The server's health status."""
        return self._health.serving

    def set_serving(self, serving: bool) -> None:
        """Sets what health says of the server and all its services."""
        self._health.set_serving(serving)

    async def drain(self) -> None:
        """Reports NOT_SERVING, refuses new calls, and gives those in flight `drain_seconds` to end."""
        self._health.drain()
        if self._server is not None:
            await self._server.stop(self._listen.drain_seconds)
            log.info("server_stopped", address=self.address)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain()

    def _bind(self, server: grpc.aio.Server, credentials: grpc.ServerCredentials | None) -> int:
        address = join_address(self._listen.host, self._listen.port)
        try:
            if credentials is not None:
                return server.add_secure_port(address, credentials)
            return server.add_insecure_port(address)
        except RuntimeError as error:
            why = _why_not(self._listen.host, self._listen.port)
            raise Unavailable(f"cannot listen on {address}: {why}", reason="CANNOT_LISTEN", address=address) from error


def _why_not(host: str, port: int) -> str:
    """grpc does not say why it could not bind; the same bind by hand does."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "the address cannot be bound"
