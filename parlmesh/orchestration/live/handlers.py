"""Handlers for sub-agents: the frozen searcher of the simulated jobs, step by step, in real time."""

import asyncio
import math
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..jobs.simulation import HANDOVER_STEPS
from ..jobs.sub_agents import MOST_STEPS, sub_agent
from .orchestrator import ORCHESTRATOR

_LONGEST_STEP_SECONDS = 60.0


class SearchingSubAgent:
    """Searches for the target of a numbered sub-task; every step takes `step_seconds`.

    Parameters: sub_task, agent (small, medium, large), step_seconds, most_steps. Returns steps, done and the digest of
    the frozen weights.
    """

    kind = "sub_agent"
    runs_in = "loop"

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Does one sub-task."""
        agent = sub_agent(str(parameters.get("agent", "small")))
        number = _number(parameters, "sub_task", 0, None)
        seconds = _number(parameters, "step_seconds", 0.0, _LONGEST_STEP_SECONDS)
        allowed = int(_number(parameters, "most_steps", MOST_STEPS + HANDOVER_STEPS, None))
        if number != int(number):
            raise InvalidInput(f"sub_task must be a whole number, got {number!r}")
        steps, found = agent.work(int(number))
        if parameters.get("agent_name") != ORCHESTRATOR:
            steps += HANDOVER_STEPS
        for _ in range(min(steps, allowed)):
            context.check()
            await asyncio.sleep(seconds)
        return {"steps": min(steps, allowed), "done": found and steps <= allowed, "digest": agent.digest}


def _number(parameters: dict[str, Any], name: str, default: float, most: float | None) -> float:
    value = parameters.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise InvalidInput(f"{name} must be a number >= 0, got {value!r}")
    if most is not None and value > most:
        raise InvalidInput(f"{name} must be <= {most:g}, got {value!r}")
    return value
