"""The life of an actor process: connect, work, leave."""

import asyncio
import os
from contextlib import AsyncExitStack

from parlmesh.telemetry import get_logger, serve_metrics

from .build import build
from .config import ActorConfig
from .metrics import ActorMetrics
from .uplink import Uplink
from .worker import Worker

log = get_logger("parlmesh.actor")

# How long the scheduler may take to end a stream that the actor has ended.
_GOODBYE_SECONDS = 1.0


async def serve(config: ActorConfig, stop: asyncio.Event) -> None:
    """Runs the workers until `stop` is set or every one was drained by an operator."""
    if config.nice:
        os.nice(config.nice)
    page = serve_metrics(config.metrics)
    try:
        async with AsyncExitStack() as stack:
            members = await build(config, stack, ActorMetrics())
            log.info(
                "serving",
                actor_ids=[worker.identity.actor_id for worker, _ in members],
                scheduler=config.scheduler,
                learner=config.learner,
                metrics_port=page.port if page else None,
            )
            async with asyncio.TaskGroup() as group:
                for worker, uplink in members:
                    group.create_task(live(worker, uplink, stop, drain_seconds=config.limits.drain_seconds))
        log.info("stopped")
    finally:
        if page is not None:
            page.close()


async def live(worker: Worker, uplink: Uplink, stop: asyncio.Event, *, drain_seconds: float) -> None:
    """One worker from its first connection until it has left."""
    async with asyncio.TaskGroup() as group:
        connection = group.create_task(uplink.run())
        reasons = [group.create_task(event.wait()) for event in (stop, worker.asked_to_leave)]
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        for reason in reasons:
            reason.cancel()
        log.info("leaving", actor_id=worker.identity.actor_id)
        worker.leave()
        await worker.drained(drain_seconds)
        uplink.close()
        await asyncio.wait({connection}, timeout=_GOODBYE_SECONDS)
        connection.cancel()
