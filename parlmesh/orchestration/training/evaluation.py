"""Evaluates orchestrators by family of jobs: policies and references get the same jobs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from parlmesh.policies.numpy_acting import Policy
from parlmesh.types import Array

from ..jobs.families import FAMILIES, Job, Split, draw_job
from ..jobs.observation import observe
from ..jobs.reference_orchestrators import hand_rule, oracle, single_agent, spam
from ..jobs.simulation import Limits, Simulation
from ..jobs.sub_agents import sub_agent

_UNBOUNDED = 1_000_000
_MOST_ACTIONS = 10_000


@dataclass(frozen=True)
class Score:
    """Means over the jobs of one family."""

    coverage: float
    success: float
    critical_steps: float
    sub_agents: float
    finish_rate: float
    """Share of assigned sub-tasks that were completed."""
    work_per_step: float
    """Sub-tasks done per critical step."""
    own: float
    """Sub-tasks that the orchestrator did itself."""


Chooses = Callable[[Simulation], Array]


def score(
    choose: Chooses,
    family: str,
    *,
    split: Split = "held_out",
    jobs: int = 200,
    seed: int = 0,
    limits: Limits | None = None,
    assigning: Literal["separate", "automatic"] = "separate",
    agent: str = "small",
) -> Score:
    """Plays `jobs` jobs of a family; the same seed gives the same jobs."""
    world = Simulation(jobs, sub_agent(agent), limits or Limits(), assigning)
    world.start(np.arange(jobs), jobs_of(family, split, jobs, seed))
    for _ in range(_MOST_ACTIONS):
        going_on = ~world.ended
        if not going_on.any():
            break
        world.step(choose(world), going_on)
    done = world.coverage * world.size
    return Score(
        coverage=float(world.coverage.mean()),
        success=float(world.success.mean()),
        critical_steps=float(world.critical.mean()),
        sub_agents=float(world.created.mean()),
        finish_rate=float(world.completed.sum() / max(1, world.assigned_ever.sum())),
        work_per_step=float(done.sum() / max(1, world.critical.sum())),
        own=float(world.own.mean()),
    )


def jobs_of(family: str, split: Split, count: int, seed: int) -> list[Job]:
    """The evaluation jobs of this seed."""
    rng = np.random.default_rng((seed, len(family)))
    return [draw_job([family], split, rng) for _ in range(count)]


def by_policy(policy: Policy, rng: np.random.Generator | None = None) -> Chooses:
    """The policy's most likely actions, or sampled ones if given a generator."""

    def choose(world: Simulation) -> Array:
        seen, mask = observe(world), world.mask()
        if rng is None:
            return policy.greedy(seen, mask).action
        return policy.act(seen, rng, mask).action

    return choose


def evaluate_policy(
    policy: Policy,
    *,
    split: Split = "held_out",
    jobs: int = 200,
    seed: int = 0,
    assigning: Literal["separate", "automatic"] = "separate",
    sampled: bool = True,
) -> dict[str, Score]:
    """Scores by family. Training used sampled actions; greedy actions of an uncertain policy may never finish."""
    found = {}
    for name, family in FAMILIES.items():
        if split == "train" and family.train is None:
            continue
        rng = np.random.default_rng((seed, 1)) if sampled else None
        found[name] = score(by_policy(policy, rng), name, split=split, jobs=jobs, seed=seed, assigning=assigning)
    return found


REFERENCES: Mapping[str, tuple[Chooses, Limits]] = {
    "single agent": (single_agent, Limits()),
    "single agent, no budget": (single_agent, Limits(_UNBOUNDED, 100, _UNBOUNDED)),
    "hand rule": (hand_rule, Limits()),
    "spam": (spam, Limits()),
}


def evaluate_references(split: Split = "held_out", jobs: int = 200, seed: int = 0) -> dict[str, dict[str, Score]]:
    """Scores of every reference on the policies' evaluation jobs."""
    names = [name for name, family in FAMILIES.items() if split == "held_out" or family.train is not None]
    return {
        title: {name: score(choose, name, split=split, jobs=jobs, seed=seed, limits=limits) for name in names}
        for title, (choose, limits) in REFERENCES.items()
    }


def oracle_steps(family: str, split: Split = "held_out", jobs: int = 50, seed: int = 0, agent: str = "small") -> float:
    """Mean critical steps of the list schedule that knows every duration."""
    return float(np.mean([oracle(job, sub_agent(agent)) for job in jobs_of(family, split, jobs, seed)]))


def table_of(scores: Mapping[str, Score]) -> str:
    """The scores as a text table."""
    lines = [f"{'':26}{''.join(f'{name:>15}' for name in Score.__dataclass_fields__)}"]
    lines += [_line(name, asdict(found).values()) for name, found in scores.items()]
    return "\n".join(lines)


def _line(name: str, values: Iterable[float]) -> str:
    return f"{name:26}" + "".join(f"{value:>15.3f}" for value in values)
