"""Frozen sub-agents: small policies that search for a target, step by step, and are never trained.

A sub-task hides a target some positions away on a line. In each step the sub-agent gets a hint of the direction, which
is sometimes wrong, and its policy (three weights) decides where to go. Only the weights and the sub-task's number
determine the duration and the success, so simulated and real runs are equal.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

SUB_TASKS = 4_096
"""Number of sub-tasks."""
MOST_STEPS = 40
"""Steps after which a sub-agent stops trying."""
_DISTANCES = (4.0, 0.45)
_FARTHEST = 18
_RIGHT_HINTS = 0.85


@dataclass(frozen=True)
class SubAgent:
    """A policy over (hint, last move, 1): moves forward with the sigmoid of their weighted sum as probability."""

    name: str
    weights: tuple[float, float, float]

    @property
    def digest(self) -> str:
        """Digest of the weights; it proves that they were never trained."""
        return hashlib.sha256(np.asarray(self.weights, "<f8").tobytes()).hexdigest()

    @cached_property
    def results(self) -> tuple[Array, Array]:
        """For every sub-task: steps taken, and whether the target was found, each [SUB_TASKS]."""
        return self._search(np.arange(SUB_TASKS))

    def work(self, sub_task: int) -> tuple[int, bool]:
        """Does one sub-task; returns the steps it took and whether it found the target."""
        if isinstance(sub_task, bool) or not isinstance(sub_task, int) or not 0 <= sub_task < SUB_TASKS:
            raise InvalidInput(f"sub_task must be a whole number from 0 to {SUB_TASKS - 1}, got {sub_task!r}")
        steps, found = self._search(np.array([sub_task]))
        return int(steps[0]), bool(found[0])

    def _search(self, sub_tasks: Array) -> tuple[Array, Array]:
        targets, hints, choices = (table[sub_tasks] for table in _world())
        hint_weight, move_weight, bias = self.weights
        place, move = np.zeros(len(sub_tasks)), np.zeros(len(sub_tasks))
        steps, found = np.full(len(sub_tasks), MOST_STEPS), np.zeros(len(sub_tasks), np.bool_)
        for step in range(MOST_STEPS):
            towards = np.sign(targets - place) * hints[:, step]
            forward = 1.0 / (1.0 + np.exp(-(hint_weight * towards + move_weight * move + bias)))
            move = np.where(choices[:, step] < forward, 1.0, -1.0)
            place += move
            arrived = ~found & (place == targets)
            steps[arrived] = step + 1
            found |= arrived
        return steps, found


@lru_cache(maxsize=1)
def _world() -> tuple[Array, Array, Array]:
    """Targets [SUB_TASKS]; whether hints are right (1 or -1) and the random draws, each [SUB_TASKS, MOST_STEPS]."""
    rng = np.random.default_rng(18)
    distance = np.clip(np.rint(_DISTANCES[0] * rng.lognormal(0.7, _DISTANCES[1], SUB_TASKS)), 2, _FARTHEST)
    targets = distance * rng.choice((-1.0, 1.0), SUB_TASKS)
    hints = np.where(rng.random((SUB_TASKS, MOST_STEPS)) < _RIGHT_HINTS, 1.0, -1.0)
    return targets, hints, rng.random((SUB_TASKS, MOST_STEPS))


SUB_AGENTS = {
    agent.name: agent
    for agent in (
        SubAgent("small", (1.1, 0.2, 0.0)),
        SubAgent("medium", (1.8, 0.3, 0.0)),
        SubAgent("large", (3, 0.2, 0)),
    )
}
"""Sub-agents by name, from worst to best."""


def sub_agent(name: str) -> SubAgent:
    """The sub-agent of that name."""
    if name not in SUB_AGENTS:
        raise InvalidInput(f"sub_agent must be one of {', '.join(SUB_AGENTS)}, got {name!r}")
    return SUB_AGENTS[name]
