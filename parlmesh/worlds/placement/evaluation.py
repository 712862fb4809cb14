"""Evaluates baselines and policies over whole episodes. Equal seeds give all of them equal conditions."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np

from parlmesh.environments.spaces import observed
from parlmesh.errors import InvalidInput
from parlmesh.policies import Policy
from parlmesh.types import Array

from .baselines import BASELINES, TARGET_UTILISATION, Random
from .best_course import CourseSearch
from .environment import PlacementVectorEnv
from .episode_conditions import drawn_profiles
from .unforeseen_bursts import InsuredSearch, Replanner

Stepped: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]
Decide: TypeAlias = Callable[[Any], Stepped]
"""Takes an observation, makes a step and returns its result."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over episodes; rewards are per step. `deviation` is the standard deviation of the episodes' means."""

    reward: float
    deviation: float
    latency: float
    resource: float
    balance: float
    refused: float
    latency_ms: float
    throughput: float
    """Requests answered per second."""
    success: float
    """Share of requests that were answered."""
    episodes: int
    steps: int

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def evaluate_baseline(
    name: str,
    version: int,
    settings: Mapping[str, Any],
    episodes: int,
    seed: int,
    *,
    target: float = TARGET_UTILISATION,
) -> Evaluation:
    """Evaluates a baseline by name. In v1 and v2, `random` samples the version's own actions."""
    if name not in BASELINES:
        raise InvalidInput(f"baseline must be one of {', '.join(BASELINES)}, got {name!r}")
    envs = _make(version, settings, episodes)
    rng = np.random.default_rng(seed)
    if BASELINES[name] is Random and version != 3:
        envs.action_space.seed(seed)
        return _played(envs, seed, lambda seen: envs.step(envs.action_space.sample()))
    baseline = BASELINES[name](envs.simulation, rng, target=target)
    return _played(envs, seed, lambda seen: envs.place(baseline.wanted()))


def evaluate_policy(
    policy: Policy, version: int, settings: Mapping[str, Any], episodes: int, seed: int, *, sampled: bool = False
) -> Evaluation:
    """Evaluates a trained policy with its most likely actions, or sampled ones as in training."""
    envs = _make(version, settings, episodes)
    read = observed(envs.single_observation_space)
    rng = np.random.default_rng(seed)
    state = policy.initial_state(episodes)

    def decide(seen: Any) -> Stepped:
        nonlocal state
        mask = None if read.mask is None else read.mask(seen)
        given = read.take(seen)
        choice = policy.act(given, rng, mask, state) if sampled else policy.greedy(given, mask, state)
        state = choice.state
        return envs.step(policy.to_environment(choice.action))

    return _played(envs, seed, decide)


def evaluate_course(settings: Mapping[str, Any], episodes: int, seed: int) -> tuple[float, Evaluation]:
    """The best operations of v3 with perfect foresight: an upper bound, and their reward when played."""
    envs = _make(3, settings, episodes)
    envs.reset(seed=seed)
    world = envs.simulation
    search = CourseSearch(world.cluster, world.settings)
    courses = [search.best(world.coming(episode), world.pods[episode]) for episode in range(episodes)]
    operations = iter(np.stack([course.operations for course in courses], axis=1))
    reached = _played(envs, seed, lambda seen: envs.step(next(operations)))
    return float(np.mean([course.bound for course in courses])), reached


def evaluate_insured(settings: Mapping[str, Any], episodes: int, seed: int) -> Evaluation:
    """The best operations of v3 when everything but bursts is known in advance."""
    envs, search, profiles = _unforeseen(settings, episodes, seed)
    world = envs.simulation
    plans = [search.plan(world.coming(each), *profile) for each, profile in enumerate(profiles)]

    def decide(seen: Any) -> Stepped:
        step = int(world.time[0])
        return envs.step(np.stack([plan.operations(step, pods) for plan, pods in zip(plans, world.pods, strict=True)]))

    return _played(envs, seed, decide)


def evaluate_replanned(settings: Mapping[str, Any], episodes: int, seed: int) -> Evaluation:
    """Operations of v3 by a planner that knows the model but not the future."""
    envs, search, profiles = _unforeseen(settings, episodes, seed)
    planners = [Replanner(search, *profile) for profile in profiles]

    def chosen(each: int) -> Array:
        step, coming = int(envs.simulation.time[0]), envs.simulation.coming(each)
        return planners[each].operations(step, coming.site[step], coming.alive[step], envs.simulation.pods[each])

    return _played(envs, seed, lambda seen: envs.step(np.stack([chosen(each) for each in range(episodes)])))


def _unforeseen(
    settings: Mapping[str, Any], episodes: int, seed: int
) -> tuple[PlacementVectorEnv, InsuredSearch, list[tuple[list[str], Array]]]:
    """Environments at the start of their episodes, the search, and each episode's load profile."""
    envs = _make(3, settings, episodes)
    envs.reset(seed=seed)
    world = envs.simulation
    deployments = len(world.cluster.deployments)
    drawn = [np.random.default_rng(seed + each) for each in range(episodes)]
    profiles = [drawn_profiles(deployments, world.settings, envs.trace, rng) for rng in drawn]
    return envs, InsuredSearch(world.cluster, world.settings), profiles


def _make(version: int, settings: Mapping[str, Any], episodes: int) -> PlacementVectorEnv:
    return PlacementVectorEnv(episodes, version=version, **settings)  # type: ignore[arg-type]


def _played(envs: PlacementVectorEnv, seed: int, decide: Decide) -> Evaluation:
    seen, _ = envs.reset(seed=seed)
    steps = envs.simulation.settings.episode_steps
    rewards = np.zeros((steps, envs.num_envs))
    told: dict[str, list[float]] = {}
    for step in range(steps):
        seen, rewards[step], _, _, info = decide(seen)
        for name, values in info.items():
            if not name.startswith("_"):
                told.setdefault(name, []).append(float(values.mean()))
    mean = {name: float(np.mean(values)) for name, values in told.items()}
    success = 1.0 - mean.pop("lost")
    means = rewards.mean(axis=0)
    return Evaluation(
        reward=float(means.mean()),
        deviation=float(means.std()),
        success=success,
        episodes=envs.num_envs,
        steps=steps,
        **mean,
    )
