"""grpc.health.v1 that says what the server says. Unlike grpcio's own, its watchers end when the server drains."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from parlmesh.errors import NotFound

SERVICE_NAME = "grpc.health.v1.Health"

_Status = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):
    """One status for the server ("") and each of its services."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = frozenset(["", *services])
        self._serving = False
        self._draining = False
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        """Ignored once the server drains."""
        if not self._draining and serving != self._serving:
            self._serving = serving
            self._wake()

    def drain(self) -> None:
        """NOT_SERVING for good; watchers are told and end, else each would hold the drain to its limit."""
        self._serving = False
        self._draining = True
        self._wake()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            raise NotFound(f'no service "{request.service}" here', service=request.service)
        return _Status(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        sent = None
        while True:
            changed, status, draining = self._changed, self._status(request.service), self._draining
            if status != sent:
                sent = status
                yield _Status(status=status)
            if draining:
                return
            await changed.wait()

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return _Status.SERVICE_UNKNOWN
        return _Status.SERVING if self._serving else _Status.NOT_SERVING

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
