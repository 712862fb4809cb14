"""The lifecycle of a relay process: serve, check the learner, drain."""

import asyncio
import contextlib
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parlmesh.config import effective
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.rpc import open_channel, set_within
from parlmesh.rpc.server import FleetServer
from parlmesh.telemetry import get_logger
from parlmesh.telemetry.metrics_page import HEALTH_PATH, health_page, serve_metrics
from parlmesh.telemetry.version_metric import tell_build

from . import metrics
from .config import RelayConfig
from .policy_source import Source
from .servicer import RelayServicer

log = get_logger("parlmesh.relay")


async def serve(config: RelayConfig, stop: asyncio.Event) -> None:
    """Serves until `stop`; reports SERVING while the learner does."""
    log.info("configured", config=effective(config))
    channel = open_channel(config.learner, config.security, max_message_bytes=config.limits.message_bytes)
    source = Source(policy_stub(channel), config)
    server = FleetServer(listen=config.listen, security=config.security, services=(RelayServicer(source).service,))
    tell_build("relay")
    page = serve_metrics(config.metrics, {HEALTH_PATH: health_page(lambda: server.serving)})
    try:
        port = await server.start()
        log.info("serving", address=server.address, port=port, learner=config.learner)
        await _follow_health(channel, server, config.limits.check_seconds, stop)
    finally:
        await server.drain()
        await source.close()
        await channel.close()
        if page is not None:
            page.close()
    log.info("stopped")


async def _follow_health(channel: grpc.aio.Channel, server: FleetServer, seconds: float, stop: asyncio.Event) -> None:
    """Mirrors the learner's health. Held policies are still served; the status tells that no new ones arrive."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    said: bool | None = None
    while not stop.is_set():
        serves = False
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
            serves = answer.status == health_pb2.HealthCheckResponse.SERVING
        server.set_serving(serves)
        metrics.LEARNER_SERVES.set(serves)
        if serves is not said:
            (log.info if serves else log.warning)("learner_serves" if serves else "learner_away")
            said = serves
        await set_within(stop, seconds)
