"""Without foresight of bursts, insure against them: worse than knowing them, better than ignoring them."""

import numpy as np
import pytest

from parlmesh.worlds.placement.evaluation import (
    evaluate_baseline,
    evaluate_course,
    evaluate_insured,
    evaluate_replanned,
)
from parlmesh.worlds.placement.load_patterns import CALM, factors
from parlmesh.worlds.placement.unforeseen_bursts import _case, _chances, _levels

SMALL = {"nodes": 2, "deployments": 2, "max_replicas": 4, "episode_steps": 30, "cluster_seed": 3}


def test_without_bursts_it_is_the_best_course():
    settings = {**SMALL, "profile": "daily"}
    _, best = evaluate_course(settings, 4, seed=1)
    assert evaluate_insured(settings, 4, seed=1).reward == pytest.approx(best.reward)


def test_with_bursts_it_is_between_the_best_course_and_the_baselines():
    settings = {**SMALL, "deployments": 1, "profile": "bursty"}
    _, best = evaluate_course(settings, 16, seed=1)
    insured = evaluate_insured(settings, 16, seed=1)
    baselines = [evaluate_baseline(name, 3, settings, 16, seed=1).reward for name in ("greedy-latency", "kubernetes")]
    assert max(baselines) < insured.reward < best.reward
    # The price of the insurance: pods that foresight would not need.
    assert insured.resource < best.resource


def test_without_foresight_it_does_as_well_without_changes_and_worse_when_users_move():
    still = {**SMALL, "deployments": 1, "mobility": 0.0, "node_failures": 0.0, "load_noise": 0.0}
    insured = evaluate_insured(still, 4, seed=1).reward
    assert evaluate_replanned(still, 4, seed=1).reward == pytest.approx(insured)
    moving = {**still, "mobility": 0.1, "node_failures": 0.02}
    replanned = evaluate_replanned(moving, 4, seed=1).reward
    assert evaluate_baseline("greedy-latency", 3, moving, 4, seed=1).reward < replanned
    assert replanned < evaluate_insured(moving, 4, seed=1).reward


def test_bursts_come_and_go_as_often_as_it_expects():
    drawn = factors("bursty", 200_000, 288, np.random.default_rng(0))
    calm = drawn == CALM
    chances = _chances(5)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    assert (~calm[1:])[calm[:-1]].mean() == pytest.approx(1.0 - chances[0, 0], rel=0.05)
    assert calm[1:][~calm[:-1]].mean() == pytest.approx(chances[1, 0], rel=0.05)
    heights = np.bincount([_case([_levels()], np.array([factor])) for factor in drawn[~calm][::7]], minlength=6)
    assert heights[0] == 0
    assert heights[1:].min() > 0.1 * heights.sum()
