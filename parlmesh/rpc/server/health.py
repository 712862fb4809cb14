"""grpc.health.v1 with the server's own status. Unlike grpcio's version, its watches end when the server drains."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from parlmesh.errors import NotFound, ResourceExhausted

SERVICE_NAME = "grpc.health.v1.Health"

MOST_WATCHERS = 1000

_Status = health_pb2.HealthCheckResponse
# The stubs of grpc's health are older than the method.
_HealthListResponse: Any = health_pb2.HealthListResponse  # type: ignore[attr-defined]


class HealthServicer(health_pb2_grpc.HealthServicer):
    """One status for the server ("") and each of its services."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = frozenset(["", *services])
        self._serving = False
        self._draining = False
        self._changed = asyncio.Event()
        self._watchers = 0

    @property
    def serving(self) -> bool:
        """Whether the server says SERVING."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        """Ignored once the server drains."""
        if not self._draining and serving != self._serving:
            self._serving = serving
            self._wake()

    def drain(self) -> None:
        """Reports NOT_SERVING for good. Watches end, or each would hold up the drain to its limit."""
        self._serving = False
        self._draining = True
        self._wake()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            raise NotFound(f'no service "{request.service}" here', service=request.service)
        return _Status(status=self._status(request.service))

    async def List(self, request: Any, context: Any) -> Any:
        return _HealthListResponse(
            statuses={service: _Status(status=self._status(service)) for service in self._services}
        )

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        if self._watchers >= MOST_WATCHERS:
            raise ResourceExhausted(
                f"{self._watchers} callers already watch the health of this server; Check still works",
                reason="TOO_MANY_WATCHERS",
                retry_after_seconds=10.0,
            )
        self._watchers += 1
        try:
            async for status in self._statuses(request.service):
                yield _Status(status=status)
        finally:
            self._watchers -= 1

    async def _statuses(self, service: str) -> AsyncIterator[Any]:
        """The status, and each change of it until the server drains."""
        sent = None
        while True:
            changed, status, draining = self._changed, self._status(service), self._draining
            if status != sent:
                sent = status
                yield status
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
