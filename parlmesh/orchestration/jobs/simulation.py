"""Simulates many jobs at once, step by step. Pure: actions in, counts out; independent of gymnasium.

The orchestrator works itself, creates sub-agents, assigns them ready sub-tasks, waits for the assigned ones, and
finishes. Waiting ends a stage: it costs one step plus the steps of the slowest in the group. Work beyond the budget of
critical steps is cut off, and unfinished work does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .families import MOST_SUB_TASKS, TRIES, Job
from .sub_agents import SubAgent

SUCCESS_COVERAGE = 0.9
"""Share of a job that must be done within its budget to count as a success."""
HANDOVER_STEPS = 2
"""A sub-agent's extra steps: reading its sub-task and reporting its result."""


class Action(IntEnum):
    """An orchestrator's actions."""

    WORK = 0
    """Do the next ready sub-task itself."""
    CREATE = 1
    """create_subagent: adds an idle sub-agent; costs one step."""
    ASSIGN = 2
    """assign_task: an idle sub-agent gets the next ready sub-task."""
    WAIT = 3
    """Wait until every assigned sub-agent has answered."""
    FINISH = 4


@dataclass(frozen=True)
class Limits:
    """The limits of a job."""

    critical_steps: int = 160
    sub_agents: int = 100
    coordinated_steps: int = 1_500

    def __post_init__(self) -> None:
        for name in ("critical_steps", "sub_agents", "coordinated_steps"):
            if not 1 <= getattr(self, name) <= 1_000_000:
                raise InvalidInput(f"{name} must be from 1 to 1000000, got {getattr(self, name)}")


class Simulation:
    """`count` jobs side by side; every array has one row per job."""

    def __init__(
        self,
        count: int,
        agent: SubAgent,
        limits: Limits,
        assigning: Literal["separate", "automatic"] = "separate",
        credit: Literal["done", "finished"] = "done",
    ) -> None:
        """With `credit` finished, a job cut off by its budget earns nothing, however much of it was done."""
        if credit not in ("done", "finished"):
            raise InvalidInput(f"credit must be done or finished, got {credit!r}")
        if assigning not in ("separate", "automatic"):
            raise InvalidInput(f"assigning must be separate or automatic, got {assigning!r}")
        self.limits, self.agent, self._automatic = limits, agent, assigning == "automatic"
        self._strict = credit == "finished"
        self._steps, self._found = agent.results
        grid = (count, MOST_SUB_TASKS)
        self.size = np.ones(count, np.int64)
        self.needs = np.zeros((*grid, MOST_SUB_TASKS), np.bool_)
        self.draws = np.zeros((*grid, TRIES), np.int64)
        self.links = np.zeros(grid, np.int64)
        self.tries = np.zeros(grid, np.int64)
        # Positions beyond a job's size count as done.
        self.done = np.ones(grid, np.bool_)
        self.assigned = np.zeros(grid, np.bool_)
        self.ready = np.zeros(grid, np.bool_)
        for name in ("created", "assigned_ever", "completed", "critical", "coordinated", "stages", "own", "seen_steps"):
            setattr(self, name, np.zeros(count, np.int64))
        self.longest = np.zeros(count, np.int64)
        self.widest = np.zeros(count, np.int64)
        self.failures = np.zeros(count, np.int64)
        self.finished = np.zeros(count, np.bool_)
        self.ended = np.zeros(count, np.bool_)

    created: Array
    assigned_ever: Array
    completed: Array
    critical: Array
    coordinated: Array
    stages: Array
    own: Array
    """Sub-tasks that the orchestrator did itself."""
    seen_steps: Array

    def start(self, rows: Sequence[int] | Array, jobs: Sequence[Job]) -> None:
        """Starts new jobs in these rows."""
        for row, job in zip(rows, jobs, strict=True):
            size = job.size
            self.size[row] = size
            self.needs[row] = False
            self.needs[row, :size, :size] = job.needs
            self.draws[row, :size] = job.draws
            self.done[row] = np.arange(MOST_SUB_TASKS) >= size
            self.links[row] = 0
            self.links[row, :size] = job.links
        chosen = np.asarray(rows)
        self.tries[chosen] = 0
        self.assigned[chosen] = False
        for counts in (self.created, self.assigned_ever, self.completed, self.critical, self.coordinated, self.stages):
            counts[chosen] = 0
        for counts in (self.own, self.seen_steps, self.longest, self.widest, self.failures):
            counts[chosen] = 0
        self.finished[chosen] = False
        self.ended[chosen] = False
        self._find_ready()

    @property
    def busy(self) -> Array:
        """Number of sub-agents with a sub-task [count]."""
        counts: Array = self.assigned.sum(1)
        return counts

    @property
    def idle(self) -> Array:
        """Number of sub-agents without one [count]."""
        counts: Array = self.created - self.busy
        return counts

    @property
    def coverage(self) -> Array:
        """Share of the sub-tasks that were done."""
        beyond = MOST_SUB_TASKS - self.size
        share: Array = (self.done.sum(1) - beyond) / self.size
        return share

    @property
    def quality(self) -> Array:
        """A job's value: the share done within its budget."""
        return np.where(self.finished, self.coverage, 0.0) if self._strict else self.coverage

    @property
    def success(self) -> Array:
        """Whether enough of the job was done within its budget."""
        return self.quality >= SUCCESS_COVERAGE

    def mask(self) -> Array:
        """Allowed actions [count, 5]; finishing is always allowed."""
        found = np.ones((len(self.size), len(Action)), np.bool_)
        any_ready = self.ready.any(1)
        found[:, Action.WORK] = any_ready
        found[:, Action.CREATE] = self.created < self.limits.sub_agents
        found[:, Action.ASSIGN] = any_ready & (self.idle > 0) & (not self._automatic)
        found[:, Action.WAIT] = self.busy > 0
        if self._automatic:
            found[:, Action.WAIT] = any_ready & (self.created > 0)
        found[self.ended] = False
        found[:, Action.FINISH] = True
        return found

    def step(self, actions: Array, rows: Array) -> None:
        """One action in each of these rows [count]; a masked action does nothing but costs a step."""
        allowed = self.mask()[np.arange(len(actions)), actions] & rows
        refused = rows & ~allowed
        self._work(np.flatnonzero(allowed & (actions == Action.WORK)))
        self._create(allowed & (actions == Action.CREATE))
        self._assign(np.flatnonzero(allowed & (actions == Action.ASSIGN)))
        self._wait(np.flatnonzero(allowed & (actions == Action.WAIT)))
        self._spend(refused, np.ones(len(actions), np.int64))
        finishing = allowed & (actions == Action.FINISH)
        self._find_ready()
        # A job with all sub-tasks done needs no further decisions.
        self.finished |= finishing | (rows & self.done.all(1))
        self.ended |= self.finished

    def _work(self, rows: Array) -> None:
        if not len(rows):
            return
        chosen = self.ready[rows].argmax(1)
        draws = self.draws[rows, chosen, self.tries[rows, chosen] % TRIES]
        cost = self._steps[draws]
        left = self.limits.critical_steps - self.critical[rows]
        room = self.limits.coordinated_steps - self.coordinated[rows]
        fits = (cost <= left) & (cost <= room)
        spent = np.minimum(np.minimum(cost, left), room)
        self.critical[rows] += spent
        self.coordinated[rows] += spent
        self.done[rows, chosen] = fits & self._found[draws]
        self.own[rows] += fits & self._found[draws]
        self.tries[rows, chosen] += 1
        self._learn(rows, spent, spent, np.ones(len(rows), np.int64), (fits & ~self._found[draws]).astype(np.int64))
        self.ended[rows] |= ~fits | (self.critical[rows] >= self.limits.critical_steps)

    def _create(self, rows: Array) -> None:
        fits = rows & (self.critical < self.limits.critical_steps)
        self.created += fits
        self._spend(rows, np.ones(len(rows), np.int64))

    def _assign(self, rows: Array) -> None:
        if len(rows):
            self.assigned[rows, self.ready[rows].argmax(1)] = True
            self.assigned_ever[rows] += 1

    def _wait(self, rows: Array) -> None:
        if not len(rows):
            return
        if self._automatic:
            ready = self.ready[rows]
            group = ready & (np.cumsum(ready, 1) <= self.created[rows, None])
            self.assigned_ever[rows] += group.sum(1)
        else:
            group = self.assigned[rows]
        tries = np.take_along_axis(self.draws[rows], (self.tries[rows] % TRIES)[:, :, None], 2)[:, :, 0]
        needed = np.where(group, self._steps[tries] + HANDOVER_STEPS, 0)
        # Sub-agents that have not answered when the budget runs out are stopped; the rest of the stage counts.
        left = np.maximum(self.limits.critical_steps - self.critical[rows] - 1, 0)
        worked = np.minimum(needed, left[:, None])
        total = 1 + worked.sum(1)
        affordable = self.coordinated[rows] + total <= self.limits.coordinated_steps
        in_time = group & (needed <= left[:, None]) & affordable[:, None]
        found = in_time & self._found[tries]
        self.done[rows] |= found
        self.completed[rows] += found.sum(1)
        self.tries[rows] += group
        self.assigned[rows] = False
        cost = np.minimum(1 + worked.max(1), self.limits.critical_steps - self.critical[rows])
        self.critical[rows] += np.where(affordable, cost, 0)
        self.coordinated[rows] += np.where(affordable, total, 0)
        self.stages[rows] += affordable
        failed = (in_time & ~self._found[tries]).sum(1)
        self._learn(rows, np.where(in_time, needed, 0).sum(1), worked.max(1), in_time.sum(1), failed)
        self.ended[rows] |= ~affordable | (self.critical[rows] >= self.limits.critical_steps)

    def _learn(self, rows: Array, steps: Array, longest: Array, answers: Array, failed: Array) -> None:
        """Updates what the orchestrator has seen of the hidden durations."""
        self.seen_steps[rows] += steps
        self.longest[rows] = np.maximum(self.longest[rows], longest)
        self.failures[rows] += failed

    def _spend(self, rows: Array, steps: Array) -> None:
        """Spends the orchestrator's own steps; using up the budget ends the job."""
        self.critical += np.where(rows, steps, 0)
        self.coordinated += np.where(rows, steps, 0)
        used_up = (self.critical >= self.limits.critical_steps) | (self.coordinated >= self.limits.coordinated_steps)
        self.ended |= rows & used_up

    def _find_ready(self) -> None:
        waits = (self.needs & ~self.done[:, None, :]).any(2)
        self.ready = ~self.done & ~self.assigned & ~waits
        self.widest = np.maximum(self.widest, self.ready.sum(1) + self.assigned.sum(1))
