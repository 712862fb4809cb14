"""Orchestrates one job on a fleet: create_subagent, assign_task, wait, work, finish.

async with PARLController() as controller:
    await controller.initialize(8, actor={"plugins": ["orchestration"]})
    job = Orchestrator(controller)
    for name in ("anna", "boris"):
        job.create_subagent(name)
        job.assign_task(name, {"sub_task": 7})
    observations = await job.wait()
    result = job.finish()

Every assignment is a task `JOB/stage-agent`, so `parlmesh job report JOB` shows where the time went. Running a job
again under its id, with the same calls, returns the outcomes that the scheduler still has.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlmesh.client import PARLController, TaskRequest
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.limits import TASK_ID

from ..budget import Budget
from .sub_agent_answers import Observation, observation_of

MOST_STEPS, SYSTEM_PROMPT, AGENT = "most_steps", "system_prompt", "agent_name"
_LONGEST_NAME = 64
ORCHESTRATOR = "orchestrator"


@dataclass(frozen=True)
class Stage:
    """One action of the orchestrator: its own steps, and those of each sub-agent in the group."""

    main: int
    group: tuple[int, ...] = ()


@dataclass(frozen=True)
class JobResult:
    """The result of a job."""

    job_id: str
    answer: Any
    observations: tuple[Observation, ...]
    stages: tuple[Stage, ...]
    sub_agents: int
    spent: Mapping[str, float]
    """Critical steps, sub-agents and coordinated steps, by name."""


class Orchestrator:
    """Spends a budget on a job. A call that exceeds the budget raises BudgetExceeded and changes nothing."""

    def __init__(
        self,
        controller: PARLController,
        *,
        kind: str = "sub_agent",
        job_id: str = "",
        budget: Budget | None = None,
        stage_seconds: float = 600.0,
    ) -> None:
        """`kind` is the sub-agents' handler; `stage_seconds` is the longest wait for a group."""
        self.job_id = job_id or f"job-{uuid.uuid4().hex[:12]}"
        TASK_ID.check_text(self.job_id, "the job")
        if "/" in self.job_id or len(self.job_id) > TASK_ID.most - _LONGEST_NAME - 16:
            most = int(TASK_ID.most) - _LONGEST_NAME - 16
            raise InvalidInput(f"job_id must have at most {most} characters and no /, got {self.job_id!r}")
        if not stage_seconds > 0:
            raise InvalidInput(f"stage_seconds must be > 0, got {stage_seconds}")
        self._controller, self._kind, self._seconds = controller, kind, stage_seconds
        self.budget = budget or Budget()
        self._prompts: dict[str, str] = {}
        self._assigned: dict[str, Mapping[str, Any]] = {}
        self._stages: list[Stage] = []
        self._observations: list[Observation] = []
        self._result: JobResult | None = None
        self._waiting = False

    @property
    def idle(self) -> list[str]:
        """Sub-agents without an assignment."""
        return [name for name in self._prompts if name not in self._assigned]

    @property
    def assigned(self) -> list[str]:
        """Sub-agents that start when the orchestrator waits."""
        return list(self._assigned)

    def create_subagent(self, name: str, system_prompt: str = "") -> None:
        """Adds a sub-agent; costs the orchestrator one step."""
        self._going_on()
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or "/" in name:
            raise InvalidInput(f"a sub-agent's name must have 1 to {_LONGEST_NAME} characters and no /, got {name!r}")
        if name in self._prompts or name == ORCHESTRATOR:
            raise InvalidInput(f"sub-agent {name!r} already exists; choose another name")
        self.budget.create_in_a_stage()
        self._prompts[name] = system_prompt
        self._stages.append(Stage(1))

    def assign_task(self, agent: str, parameters: Mapping[str, Any]) -> None:
        """Assigns a task to an idle sub-agent, which starts when the orchestrator waits."""
        self._going_on()
        if agent not in self._prompts:
            known = ", ".join(self._prompts) or "none"
            raise InvalidInput(f"there is no sub-agent {agent!r}; there are {known}")
        if agent in self._assigned:
            raise InvalidInput(f"sub-agent {agent!r} already has a task; wait for it first")
        self._assigned[agent] = dict(parameters)

    async def wait(self) -> list[Observation]:
        """Runs the group and returns each sub-agent's answer, in the order of assignment."""
        self._going_on()
        if not self._assigned:
            raise FailedPrecondition("nothing is assigned; call assign_task first", reason="NOTHING_ASSIGNED")
        most = self._allowance(1, len(self._assigned))
        group = [self._request(agent, given, most) for agent, given in self._assigned.items()]
        found = await self._run(list(self._assigned), group, most)
        self._assigned.clear()
        self._spend(Stage(1, tuple(each.steps for each in found)), found)
        return found

    async def work(self, parameters: Mapping[str, Any]) -> Observation:
        """Does a sub-task itself: nothing runs in parallel, and there is no hand-over."""
        self._going_on()
        most = self._allowance(0, 1)
        request = self._request(ORCHESTRATOR, parameters, most)
        (found,) = await self._run([ORCHESTRATOR], [request], most)
        self._spend(Stage(found.steps), [found])
        return found

    def finish(self, answer: Any = None) -> JobResult:
        """Ends the job; later calls are refused."""
        self._going_on()
        self._result = JobResult(
            self.job_id,
            answer,
            tuple(self._observations),
            tuple(self._stages),
            len(self._prompts),
            self.budget.spent,
        )
        return self._result

    def _allowance(self, main: int, group: int) -> int:
        """Most steps for each sub-agent in a group, so that no answers can exceed the budget."""
        left = self.budget.left
        most = int(min(left["critical_steps"] - main, (left["coordinated_steps"] - main) // group))
        if most < 1:
            # Raises BudgetExceeded with the name of the limit.
            self.budget.check_stage(main, [1.0] * group)
        return most

    def _request(self, agent: str, parameters: Mapping[str, Any], most: int) -> TaskRequest:
        given = {**parameters, AGENT: agent, MOST_STEPS: most}
        if self._prompts.get(agent):
            given[SYSTEM_PROMPT] = self._prompts[agent]
        return TaskRequest(self._kind, given, task_id=f"{self.job_id}/{len(self._stages)}-{agent}")

    async def _run(self, agents: Sequence[str], group: Sequence[TaskRequest], most: int) -> list[Observation]:
        self._waiting = True
        try:
            outcomes = await self._controller.execute_parallel(group, timeout=self._seconds)
        finally:
            self._waiting = False
        return [observation_of(agent, outcome, most) for agent, outcome in zip(agents, outcomes, strict=True)]

    def _spend(self, stage: Stage, found: Sequence[Observation]) -> None:
        self.budget.stage(stage.main, stage.group)
        self._stages.append(stage)
        self._observations.extend(found)

    def _going_on(self) -> None:
        if self._result is not None:
            raise FailedPrecondition(f"job {self.job_id} is finished", reason="FINISHED")
        if self._waiting:
            raise FailedPrecondition(f"job {self.job_id} waits for a group; make one call at a time", reason="WAITING")
