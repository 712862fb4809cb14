"""The page of a MAPE-K loop: the health of nodes, its decisions, and the actions that worked."""

import asyncio
import time
from typing import Any

from parlmesh.errors import NotFound

from .. import number_format as figures
from ..page_request import View

MOST_NODES = 500
MOST_DECISIONS = 100


async def mesh(view: View) -> dict[str, Any]:
    """Reads the loop's knowledge; empty if the page was started without it."""
    if view.config.mapek is None:
        return {"nodes": None}
    return await asyncio.to_thread(_read, view)


def _read(view: View) -> dict[str, Any]:
    # Imported here, because only this page needs the loop's packages.
    from parlmesh.mapek.knowledge import Knowledge

    file = view.config.mapek
    assert file is not None
    if not file.is_file():
        raise NotFound(f"{file} does not exist yet; a loop writes it after its first cycle")
    with Knowledge(file) as knowledge:
        nodes, decisions = knowledge.health(MOST_NODES), knowledge.decisions(MOST_DECISIONS)
        worked = knowledge.what_worked()
    now = time.time()
    return {
        "nodes": [
            {
                "id": node,
                "health": str(health),
                "tone": figures.tone(str(health)),
                "why": why,
                "seen": f"{figures.seconds(max(0.0, now - seen))} ago",
            }
            for node, seen, health, why in nodes
        ],
        "decisions": [
            {
                "id": each.id,
                "time": figures.clock(each.started),
                "node": each.node,
                "symptom": each.symptom.name,
                "severity": str(each.symptom.severity),
                "action": each.action or "none",
                "status": str(each.status).replace("_", " "),
                "tone": figures.tone(str(each.status)),
                "reason": each.reason,
                "measured": each.error or each.measured,
            }
            for each in decisions
        ],
        "worked": [{**each, "seconds": figures.seconds(each["seconds"] or 0.0)} for each in worked],
    }
