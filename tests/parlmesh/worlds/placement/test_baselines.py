"""Baselines keep to the cluster, differ from each other, and none beats the optimum."""

import itertools
from typing import Any

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.worlds.placement.baselines import BASELINES
from parlmesh.worlds.placement.environment import PlacementVectorEnv
from parlmesh.worlds.placement.evaluation import evaluate_baseline
from parlmesh.worlds.placement.optimum import best_possible

SMALL: dict[str, Any] = {"nodes": 3, "deployments": 2, "max_replicas": 3, "episode_steps": 4, "cluster_seed": 1}


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_asks_only_for_what_nodes_have_even_when_they_fail_or_are_full(name):
    # `place` refuses what does not fit.
    settings = {"nodes": 4, "deployments": 3, "load_scale": 3.0, "node_failures": 0.1, "episode_steps": 40}
    found = evaluate_baseline(name, 3, settings, 4, seed=1)
    assert found.episodes == 4
    assert found.refused == 0.0
    assert found.reward == pytest.approx(found.latency + found.resource + found.balance)


def test_baselines_are_judged_under_the_same_conditions_and_differ():
    found = {name: evaluate_baseline(name, 3, {"episode_steps": 40}, 8, seed=5) for name in BASELINES}
    assert found == {name: evaluate_baseline(name, 3, {"episode_steps": 40}, 8, seed=5) for name in BASELINES}
    assert len({one.reward for one in found.values()}) == len(BASELINES)
    nearest = found["greedy-latency"]
    assert all(nearest.latency_ms <= one.latency_ms for name, one in found.items() if name != "random")


@pytest.mark.parametrize("version", [1, 2])
def test_baselines_play_the_smaller_versions_too(version):
    random, static = (evaluate_baseline(name, version, {}, 8, seed=1).reward for name in ("random", "static"))
    assert random < static


def test_an_unknown_baseline_is_refused_by_name():
    with pytest.raises(InvalidInput, match="random, static"):
        evaluate_baseline("lucky", 3, {}, 1, seed=0)


def test_the_optimum_is_above_every_baseline():
    pytest.importorskip("scipy")
    envs = PlacementVectorEnv(1, **SMALL)
    envs.reset(seed=2)
    best = best_possible(envs.simulation.cluster, envs.simulation.settings, envs.simulation.coming(0))
    for name in BASELINES:
        assert evaluate_baseline(name, 3, SMALL, 1, seed=2).reward <= best.rewards.mean() + 1e-9


@pytest.mark.parametrize("queue", ["shared", "per_pod"])
def test_the_optimum_is_what_an_exhaustive_search_finds(queue):
    pytest.importorskip("scipy")
    settings = {**SMALL, "nodes": 2, "queue": queue, "profile": "steady", "load_noise": 0.0, "episode_steps": 2}
    envs = PlacementVectorEnv(1, **settings, timeout_ms=60_000.0)
    envs.reset(seed=3)
    world = envs.simulation
    best = best_possible(world.cluster, world.settings, world.coming(0))
    rewards = {}
    for counts in itertools.product(range(4), repeat=4):
        wanted = np.array(counts).reshape(1, 2, 2)
        fits = (wanted[0] @ world.cluster.need <= world.cluster.capacity).all()
        if fits and ((wanted.sum(axis=1) >= 1) & (wanted.sum(axis=1) <= 3)).all():
            envs.reset(seed=3)
            world.pods[:] = wanted
            rewards[counts] = float(envs.place(wanted)[1][0])
    assert max(rewards.values()) == pytest.approx(best.rewards[0], rel=1e-6)
    assert rewards[tuple(best.pods[0].ravel().tolist())] == pytest.approx(best.rewards[0], rel=1e-6)
