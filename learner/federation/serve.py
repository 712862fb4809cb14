"""A learner that coordinates federations and trains nothing itself."""

import asyncio
from collections.abc import Callable
from functools import partial

import grpc.aio

from parlmesh.config import to_yaml
from parlmesh.errors import NotFound
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer, Service
from parlmesh.telemetry import get_logger
from parlmesh.telemetry.metrics import serve_metrics

from ..config import LearnerConfig
from ..files.folder_lock import FolderLock
from ..policies.registry import PolicyRegistry
from ..services.policy_servicer import PolicyServicer
from .directory import Federations
from .servicer import FederationServicer

log = get_logger("parlmesh.learner")


async def serve_federations(
    config: LearnerConfig, build: Callable[[LearnerConfig, grpc.aio.Channel], Federations], stop: asyncio.Event
) -> None:
    """Serves until `stop`; FailedPrecondition when another learner has the folder."""
    lock = FolderLock(config.run_dir)
    try:
        await _serve(config, build, stop)
    finally:
        lock.release()


async def _serve(
    config: LearnerConfig, build: Callable[[LearnerConfig, grpc.aio.Channel], Federations], stop: asyncio.Event
) -> None:
    (config.run_dir / "learner.effective.yaml").write_text(to_yaml(config))
    channel = open_channel(config.scheduler, config.security)
    federations = build(config, channel)
    stopping = asyncio.Event()
    policies = PolicyServicer(partial(federations.policies, otherwise=_no_run), stopping)
    services = (Service("parlmesh.v1.PolicyService", policies.register), FederationServicer(federations).service)
    server = FleetServer(listen=config.listen, security=config.security, services=services)
    page = serve_metrics(config.metrics)
    try:
        port = await server.start()
        async with federations:
            log.info("serving", address=f"{config.listen.host}:{port}", port=port, mode=config.mode)
            server.set_serving(True)
            await stop.wait()
    finally:
        stopping.set()
        await server.drain()
        await channel.close()
        if page is not None:
            page.close()


def _no_run(run_id: str) -> PolicyRegistry:
    raise NotFound(f"run {run_id!r} is not here; this learner has no runs, and no federation of that name has a policy")
