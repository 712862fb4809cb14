"""Kubernetes' scores and autoscaler by the values of its own tests."""

import numpy as np
import pytest

from parlmesh.worlds.placement.autoscaling import Autoscaler
from parlmesh.worlds.placement.kubernetes_scores import (
    balanced_allocation,
    chosen_node,
    least_allocated,
    topology_spread,
)

GIBIBYTE = 2**30
NODE, USED = (4000, 8 * GIBIBYTE), (1000, 4 * GIBIBYTE)
WITH_POD = (1500, 5 * GIBIBYTE)


def test_a_node_has_the_scores_that_kubernetes_gives_it():
    assert least_allocated(NODE, WITH_POD) == 49
    assert balanced_allocation(NODE, USED, WITH_POD) == 75
    assert least_allocated(NODE, (5000, GIBIBYTE)) == 87 // 2


def test_pods_are_spread_over_hostnames():
    assert topology_spread(np.array([0, 1, 2, 3])).tolist() == [100, 71, 42, 28]
    assert topology_spread(np.array([2, 2])).tolist() == [100, 100]


def test_the_node_of_the_highest_score_is_chosen_among_those_where_the_pod_fits():
    capacity = np.array([NODE, NODE, NODE])
    reserved = np.array([USED, (0, 0), (0, 0)])
    need, counts = np.array([500, GIBIBYTE]), np.array([0, 0, 3])
    assert chosen_node(capacity, reserved, need, counts, np.array([True, True, True])) == 1
    assert chosen_node(capacity, reserved, need, counts, np.array([True, False, True])) == 0
    assert chosen_node(capacity, reserved, need, counts, np.array([False, False, False])) == -1


@pytest.mark.parametrize(
    ("replicas", "utilisation", "wanted"),
    [(4, 0.6, 4), (4, 0.65, 4), (4, 0.55, 4), (4, 0.9, 6), (2, 3.0, 8), (4, 0.67, 5)],
)
def test_the_autoscaler_follows_the_ratio_and_leaves_a_tenth_alone(replicas, utilisation, wanted):
    scaler = Autoscaler(0.6, step_seconds=15.0, least=1, most=8)
    found = scaler.wanted(np.array([replicas]), np.array([utilisation]))
    assert found.tolist() == [min(wanted, max(replicas + 4, 2 * replicas))]


def test_the_autoscaler_goes_down_only_when_nothing_asked_for_more_in_five_minutes():
    scaler = Autoscaler(0.5, step_seconds=60.0, least=1, most=10)
    replicas = scaler.wanted(np.array([4]), np.array([1.0]))
    assert replicas.tolist() == [8]
    seen = []
    for _ in range(6):
        replicas = scaler.wanted(replicas, 1.0 / replicas)
        seen.append(int(replicas[0]))
    assert seen == [8, 8, 8, 8, 2, 2]
