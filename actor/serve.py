"""An actor process from start to end: connect, work, leave."""

import asyncio
import faulthandler
import os
from contextlib import AsyncExitStack

from parlmesh.addresses import host_of, is_loopback
from parlmesh.function_tasks import IMPORTING
from parlmesh.rpc.task_group import first_of
from parlmesh.telemetry import get_logger
from parlmesh.telemetry.metrics_page import HEALTH_PATH, MetricsServer, health_page, serve_metrics_nearby
from parlmesh.telemetry.version_metric import tell_build

from .build import build
from .config import METRICS_PORT, ActorConfig
from .metrics import ActorMetrics
from .session.scheduler_stream import Uplink
from .session.session import ActorSession

log = get_logger("parlmesh.actor")

# How long a leaving actor waits for a scheduler that is away.
_AWAY_SECONDS = 2.0
_LOOK_SECONDS = 1.0
# How long the scheduler may take to end a stream that the actor has ended.
_GOODBYE_SECONDS = 1.0


async def serve(config: ActorConfig, stop: asyncio.Event) -> None:
    """Runs the actors until `stop` is set or an operator has drained every one."""
    if config.nice:
        os.nice(config.nice)
    tell_build("actor")
    uplinks: list[Uplink] = []
    health = health_page(lambda: bool(uplinks) and all(uplink.connected for uplink in uplinks))
    page = serve_metrics_nearby(config.metrics, {HEALTH_PATH: health}, METRICS_PORT)
    try:
        async with AsyncExitStack() as stack:
            members = await build(config, stack, ActorMetrics(), _announced(config, page))
            uplinks += [uplink for _, uplink in members]
            os.environ.pop(IMPORTING, None)
            log.info(
                "serving",
                actor_ids=[session.identity.actor_id for session, _ in members],
                scheduler=config.scheduler,
                learner=config.learner,
                metrics_port=page.port if page else None,
            )
            async with asyncio.TaskGroup() as group:
                watchdog = group.create_task(_end_when_stalled(config.limits.stall_seconds))
                async with asyncio.TaskGroup() as actors:
                    for session, uplink in members:
                        actors.create_task(live(session, uplink, stop, drain_seconds=config.limits.drain_seconds))
                watchdog.cancel()
        log.info("stopped")
    finally:
        if page is not None:
            page.close()


def _announced(config: ActorConfig, page: MetricsServer | None) -> int:
    """The metrics port on this host; 0 if there is none, or if the scheduler's machine cannot reach it."""
    if page is None or (is_loopback(config.metrics.host) and not is_loopback(host_of(config.scheduler))):
        return 0
    return page.port


async def live(session: ActorSession, uplink: Uplink, stop: asyncio.Event, *, drain_seconds: float) -> None:
    """One actor from its first connection until it has left."""
    async with asyncio.TaskGroup() as group:
        connection = group.create_task(uplink.run())
        await first_of(stop.wait(), session.asked_to_leave.wait())
        log.info("leaving", actor_id=session.identity.actor_id)
        session.leave()
        # While the scheduler is unreachable, the last results cannot be delivered.
        await first_of(session.drained(drain_seconds), uplink.stays_away(_AWAY_SECONDS))
        uplink.close()
        await asyncio.wait({connection}, timeout=_GOODBYE_SECONDS)
        connection.cancel()


async def _end_when_stalled(stall_seconds: float) -> None:
    """Ends the process when its event loop is stuck for this long, e.g. in a handler that never yields; 0 = never.

    The timer is Python's own and does not need the interpreter's lock. It prints the stack of every thread, then ends
    the process with exit code 1; by then the scheduler has long given the tasks to others.
    """
    if not stall_seconds:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(stall_seconds, exit=True)
            await asyncio.sleep(min(_LOOK_SECONDS, stall_seconds / 4))
    finally:
        faulthandler.cancel_dump_traceback_later()
