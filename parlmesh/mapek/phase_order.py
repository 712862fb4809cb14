"""The order in which a cycle's nodes go through its phases."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from parlmesh.exception_text import sentence_at
from parlmesh.telemetry import get_logger

from .node_answers import LONGEST_TEXT
from .node_cycle import Journey
from .types import Health

log = get_logger("parlmesh.mapek")


async def pipelined(journeys: list[Journey]) -> None:
    """Every node moves on as soon as it can."""
    await asyncio.gather(*(_whole(journey) for journey in journeys))


async def with_barriers(journeys: list[Journey]) -> None:
    """No node starts a phase before all have finished the previous one. For comparison."""
    for stage in range(len(journeys[0].stages) if journeys else 0):
        await asyncio.gather(*(_safely(journey, journey.stages[stage]) for journey in journeys))


async def one_by_one(journeys: list[Journey]) -> None:
    """One node after another. For comparison."""
    for journey in journeys:
        await _whole(journey)


async def _whole(journey: Journey) -> None:
    for stage in journey.stages:
        await _safely(journey, stage)


async def _safely(journey: Journey, stage: Callable[[], Awaitable[None]]) -> None:
    """A failure affects only its node; the cycle continues for the others."""
    try:
        await stage()
    except Exception as error:
        report = journey.report
        report.health, report.why_unknown = Health.UNKNOWN, f"its cycle failed: {sentence_at(error)}"[:LONGEST_TEXT]
        log.error("journey_failed", node_id=report.node, error=sentence_at(error))


ORDERS: Mapping[str, Callable[[list[Journey]], Awaitable[None]]] = {
    "pipelined": pipelined,
    "barriers": with_barriers,
    "sequential": one_by_one,
}
