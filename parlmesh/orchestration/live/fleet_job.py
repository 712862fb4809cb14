"""Plays a job of the environment on a fleet: the same observations, masks and budget, with answers from real tasks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parlmesh.client import PARLController
from parlmesh.types import Array

from ..budget import Budget
from ..jobs.families import TRIES, Job
from ..jobs.simulation import HANDOVER_STEPS, Action, Limits, Simulation
from ..jobs.sub_agents import sub_agent
from .orchestrator import JobResult, Orchestrator
from .sub_agent_answers import Observation


@dataclass(frozen=True)
class Played:
    """A played job: the orchestrator's result, and how much was done."""

    result: JobResult
    coverage: float
    success: bool
    critical_steps: int


class _Mirror(Simulation):
    """The state of one job, advanced by answers of real sub-agents instead of a table."""

    def __init__(self, agent: str, limits: Limits, job: Job) -> None:
        super().__init__(1, sub_agent(agent), limits)
        # Nothing is known about a sub-task before its answer.
        self._steps, self._found = np.zeros_like(self._steps), np.zeros_like(self._found)
        self.start([0], [job])

    def hear(self, draw: int, answer: Observation, handover: int) -> None:
        """Records the answer for a sub-task. One cut off at its allowance is not done."""
        self._steps[draw] = max(answer.steps - handover, 0)
        self._found[draw] = answer.done

    def draw(self, index: int) -> int:
        """The sub-task that the next try of `index` works on."""
        return int(self.draws[0, index, self.tries[0, index] % TRIES])


async def play_job(
    controller: PARLController,
    job: Job,
    choose: Callable[[Simulation], Array],
    *,
    agent: str = "small",
    step_seconds: float = 0.0,
    limits: Limits | None = None,
    job_id: str = "",
    stage_seconds: float = 600.0,
) -> Played:
    """Plays a job with a policy or a reference (`by_policy`, `single_agent`); every step takes `step_seconds`."""
    limits = limits or Limits()
    budget = Budget(limits.critical_steps, limits.sub_agents, limits.coordinated_steps)
    live = Orchestrator(controller, job_id=job_id, budget=budget, stage_seconds=stage_seconds)
    world = _Mirror(agent, limits, job)
    given = {"agent": agent, "step_seconds": step_seconds}
    while not world.ended[0]:
        action = Action(int(choose(world)[0]))
        if not world.mask()[0, action]:
            action = Action.FINISH
        next_ready = int(world.ready[0].argmax())
        if action in (Action.CREATE, Action.WAIT):
            # The orchestrator's own steps take as long as a sub-agent's.
            await asyncio.sleep(step_seconds)
        if action == Action.CREATE:
            live.create_subagent(f"sub-{int(world.created[0])}")
        elif action == Action.ASSIGN:
            live.assign_task(live.idle[0], {**given, "sub_task": world.draw(next_ready), "index": next_ready})
        elif action == Action.WORK:
            draw = world.draw(next_ready)
            world.hear(draw, await live.work({**given, "sub_task": draw, "index": next_ready}), 0)
        elif action == Action.WAIT:
            for index, answer in zip(np.flatnonzero(world.assigned[0]), await live.wait(), strict=True):
                world.hear(world.draw(int(index)), answer, HANDOVER_STEPS)
        world.step(np.array([action]), np.array([True]))
    result = live.finish(answer=float(world.coverage[0]))
    return Played(result, float(world.coverage[0]), bool(world.success[0]), int(result.spent["critical_steps"]))
