"""`parlmesh/Orchestration-v0`: orchestrating jobs as a gymnasium environment, one or many at once.

The only reward is r_perf at the end: the share of the job done within the budget. With `credit: finished`, a job cut
off by its budget earns nothing.
Auxiliary terms depend on the training's progress, which only the learner knows: the algorithm `parl` adds them there.
"""

from collections.abc import Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from parlmesh.types import Array

from .families import Split, check_families, draw_job
from .observation import FIELDS, observe
from .simulation import Action, Limits, Simulation
from .sub_agents import sub_agent

NAME = "parlmesh/Orchestration-v0"
_SEEN = spaces.Dict(
    {
        "job": spaces.Box(0.0, np.inf, (len(FIELDS),), np.float32),
        "action_mask": spaces.MultiBinary(len(Action)),
    }
)


class OrchestrationJobs(VectorEnv):
    """Many jobs stepped at once; the step after the end of one starts the next."""

    def __init__(
        self,
        num_envs: int = 1,
        *,
        families: Sequence[str] = (),
        split: Split = "train",
        assigning: Literal["separate", "automatic"] = "separate",
        credit: Literal["done", "finished"] = "done",
        agent: str = "small",
        critical_steps: int = 160,
        sub_agents: int = 100,
        coordinated_steps: int = 1_500,
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = _SEEN, spaces.Discrete(len(Action))
        self.observation_space = gymnasium.vector.utils.batch_space(_SEEN, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._families, self._split = check_families(families, split), split
        limits = Limits(critical_steps, sub_agents, coordinated_steps)
        self.world = Simulation(num_envs, sub_agent(agent), limits, assigning, credit)
        self._rng = np.random.default_rng()
        self.families = np.full(num_envs, "", dtype=object)
        """Families of the current jobs."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Starts new jobs in all rows."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._start(np.arange(self.num_envs))
        return self._seen(), {}

    def step(self, actions: Array) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """One action in each job; ended jobs are replaced instead and earn nothing."""
        over = self.world.ended.copy()
        self.world.step(np.asarray(actions), ~over)
        if over.any():
            self._start(np.flatnonzero(over))
        ended = self.world.ended.copy()
        reward = np.where(ended, self.world.quality, 0.0)
        return self._seen(), reward, ended, np.zeros_like(ended), {}

    def _start(self, rows: Array) -> None:
        jobs = [draw_job(self._families, self._split, self._rng) for _ in rows]
        self.families[rows] = [job.family for job in jobs]
        self.world.start(rows, jobs)

    def _seen(self) -> dict[str, Array]:
        return {"job": observe(self.world), "action_mask": self.world.mask().astype(np.int8)}


class Orchestration(gymnasium.Env[dict[str, Array], np.int64]):
    """One job at a time; takes the arguments of `OrchestrationJobs`."""

    def __init__(self, **arguments: Any) -> None:
        self._jobs = OrchestrationJobs(1, **arguments)
        self.observation_space: spaces.Dict = _SEEN  # type: ignore[assignment]  # a Dict of arrays
        self.action_space = self._jobs.single_action_space

    @property
    def world(self) -> Simulation:
        """The job's state, in row 0."""
        return self._jobs.world

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """A new job."""
        super().reset(seed=seed)
        seen, _ = self._jobs.reset(seed=seed)
        return _row(seen), {}

    def step(self, action: np.int64) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """One action."""
        seen, reward, ended, _, _ = self._jobs.step(np.array([action]))
        return _row(seen), float(reward[0]), bool(ended[0]), False, {}


def _row(seen: dict[str, Array]) -> dict[str, Array]:
    return {name: values[0] for name, values in seen.items()}
