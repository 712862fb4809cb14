"""Validates sub-agents' answers. They are not trusted: a bad answer only fails its own sub-task."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parlmesh.client.outcomes import Outcome

STEPS, DONE = "steps", "done"


@dataclass(frozen=True)
class Observation:
    """The end of one assignment."""

    agent: str
    task_id: str
    done: bool
    """Whether the sub-agent reports success."""
    steps: int
    """Steps it took; at most the allowance."""
    value: Mapping[str, Any]
    """Its answer; empty without one."""
    error: str = ""
    """Why there is no answer, in a sentence."""


def observation_of(agent: str, outcome: Outcome, most_steps: int) -> Observation:
    """The observation for an outcome. `steps` defaults to 1, and `done` to True for a task that succeeded.

    Impossible values are refused: the sub-task then counts as failed and costs its whole allowance.
    """
    if not outcome.ok or outcome.value is None:
        return Observation(agent, outcome.task_id, False, min(1, most_steps), {}, str(outcome.error))
    value = outcome.value
    steps, done = value.get(STEPS, 1), value.get(DONE, True)
    if not isinstance(done, bool):
        return _refused(agent, outcome, most_steps, f"{DONE} must be true or false, got {_short(done)}")
    if isinstance(steps, bool) or not isinstance(steps, (int, float)) or not math.isfinite(steps):
        return _refused(agent, outcome, most_steps, f"{STEPS} must be a number, got {_short(steps)}")
    if steps != int(steps) or not 0 <= steps <= most_steps:
        return _refused(
            agent, outcome, most_steps, f"{STEPS} must be a whole number from 0 to {most_steps}, got {_short(steps)}"
        )
    return Observation(agent, outcome.task_id, done, int(steps), value)


def _refused(agent: str, outcome: Outcome, most_steps: int, why: str) -> Observation:
    return Observation(agent, outcome.task_id, False, most_steps, {}, f"the answer of {outcome.task_id}: {why}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
