"""The best course is what trying every operation finds, and nothing limited to operations exceeds it."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.worlds.placement.best_course import CourseSearch
from parlmesh.worlds.placement.environment import PlacementVectorEnv
from parlmesh.worlds.placement.evaluation import evaluate_course
from parlmesh.worlds.placement.optimum import best_possible

SMALL: dict[str, Any] = {"nodes": 3, "deployments": 2, "max_replicas": 3, "episode_steps": 8, "cluster_seed": 1}


def earned(settings, seed, operations):
    """Mean reward per step of each of many courses [K, T, D] through one episode."""
    envs = PlacementVectorEnv(len(operations), **settings)
    envs.reset(seed=[seed] * len(operations))
    return np.mean([envs.step(operations[:, step])[1] for step in range(operations.shape[1])], axis=0)


ALONE: dict[str, Any] = {"nodes": 2, "deployments": 1, "episode_steps": 4}
TOGETHER: dict[str, Any] = {"nodes": 3, "deployments": 2, "episode_steps": 2}


@pytest.mark.parametrize(("world", "seed"), [(ALONE, 2), (ALONE, 3), (TOGETHER, 2)])
def test_it_is_what_trying_every_operation_finds(world, seed):
    settings = {**world, "max_replicas": 4, "mobility": 0.3, "load_scale": 0.8}
    steps, deployments, operations = settings["episode_steps"], settings["deployments"], 1 + 3 * settings["nodes"]
    courses = np.array(list(product(range(operations), repeat=steps * deployments))).reshape(-1, steps, deployments)
    rewards = earned(settings, seed, courses)
    envs = PlacementVectorEnv(1, **settings)
    envs.reset(seed=seed)
    simulation = envs.simulation
    course = CourseSearch(simulation.cluster, simulation.settings).best(simulation.coming(0), simulation.pods[0])
    assert course.bound == pytest.approx(rewards.max())
    assert earned(settings, seed, course.operations[None])[0] == pytest.approx(rewards.max())
    # There must be something to find.
    assert rewards.max() > earned(settings, seed, np.zeros((1, steps, deployments), np.int64))[0]


def test_nodes_that_fail_and_deployments_that_share_them_are_foreseen():
    settings: dict[str, Any] = {**SMALL, "node_failures": 0.1}
    envs = PlacementVectorEnv(3, **settings)
    envs.reset(seed=5)
    world = envs.simulation
    assert not all(world.coming(episode).alive.all() for episode in range(3))
    search = CourseSearch(world.cluster, world.settings)
    rng = np.random.default_rng(0)
    for episode in range(3):
        course = search.best(world.coming(episode), world.pods[episode])
        tried = rng.integers(10, size=(64, 8, 2)) * (rng.random((64, 8, 2)) < 0.3)
        reached = earned(settings, 5 + episode, course.operations[None])[0]
        assert earned(settings, 5 + episode, tried).max() - 1e-9 <= reached <= course.bound + 1e-9


def test_what_could_have_been_reached_is_below_what_nothing_can_exceed():
    pytest.importorskip("scipy")
    bound, reached = evaluate_course(SMALL, 2, seed=4)
    envs = PlacementVectorEnv(2, **SMALL)
    envs.reset(seed=4)
    world = envs.simulation
    limits = [best_possible(world.cluster, world.settings, world.coming(each)).rewards.mean() for each in range(2)]
    assert reached.reward <= bound <= np.mean(limits) + 1e-9
    assert reached.refused == 0.0


def test_a_cluster_that_is_too_large_is_refused():
    with pytest.raises(InvalidInput, match="small clusters"):
        evaluate_course({"nodes": 8, "deployments": 4}, 1, seed=0)
