"""Effect and cost of a step, computed by hand."""

from typing import Any

import numpy as np
import pytest

from parlmesh.worlds.placement.environment import PlacementEnv
from parlmesh.worlds.placement.operations import allowed

CLUSTER: dict[str, Any] = {
    "nodes": [
        {"name": "near", "cpu": 4, "ram": 8000, "tx": 100, "rx": 100, "disk": 200, "latency_ms": 1.0},
        {"name": "far", "cpu": 8, "ram": 16000, "tx": 100, "rx": 100, "disk": 200, "latency_ms": 2.0},
    ],
    "deployments": [
        {"name": "web", "cpu": 2, "ram": 2000, "tx": 20, "rx": 20, "disk": 50, "service_rate": 50, "request_rate": 60},
        {"name": "api", "cpu": 1, "ram": 1000, "tx": 20, "rx": 20, "disk": 50, "service_rate": 80, "request_rate": 40},
    ],
    "distance_ms": [[0.0, 30.0]],
}
CALM: dict[str, Any] = {
    "profile": "steady",
    "load_noise": 0.0,
    "mobility": 0.0,
    "node_failures": 0.0,
    "max_replicas": 4,
}
NOTHING, PLACE_NEAR, PLACE_FAR, REMOVE_NEAR, REMOVE_FAR, MOVE_NEAR, MOVE_FAR = range(7)


@pytest.fixture
def env():
    made = PlacementEnv(cluster=CLUSTER, queue="per_pod", **CALM)
    made.reset(seed=0)
    made.place(np.array([[1, 1], [1, 0]]))
    return made


def pods(env):
    return env.simulation.pods[0].tolist()


def test_the_reward_equals_a_computation_by_hand(env):
    _, reward, _, _, info = env.step(np.array([NOTHING, NOTHING]))
    web = 1000.0 / (50 - 30) + (1.0 + 32.0) / 2
    api = 1000.0 / (80 - 40) + 1.0
    latency = (60 * web + 40 * api) / 100
    assert info["latency_ms"] == pytest.approx(latency)
    shares = {"cpu": 5 / 12, "ram": 5000 / 24000, "tx": 60 / 200, "rx": 60 / 200, "disk": 150 / 400}
    resource = sum(shares.values()) / 5
    used = {"cpu": (3 / 4, 2 / 8), "ram": (3 / 8, 2 / 16), "tx": (0.4, 0.2), "rx": (0.4, 0.2), "disk": (0.5, 0.25)}
    balance = sum(abs(near - far) / 2 for near, far in used.values()) / 5
    assert info["latency"] == pytest.approx(-latency / 100)
    assert info["resource"] == pytest.approx(-2.0 * resource)
    assert info["balance"] == pytest.approx(-balance)
    assert info["refused"] == 0.0
    assert reward == pytest.approx(-latency / 100 - 2.0 * resource - balance)
    assert info["throughput"] == pytest.approx(100.0)


def test_a_placed_pod_is_reserved_at_once_and_serves_from_the_next_step_on(env):
    _, _, _, _, before = env.step(np.array([NOTHING, NOTHING]))
    _, _, _, _, during = env.step(np.array([PLACE_FAR, NOTHING]))
    _, _, _, _, after = env.step(np.array([NOTHING, NOTHING]))
    assert pods(env) == [[1, 1], [2, 0]]
    assert during["latency_ms"] == pytest.approx(before["latency_ms"])
    assert during["resource"] == after["resource"] < before["resource"]
    web = 1000.0 / (50 - 20) + (1.0 + 32.0 + 32.0) / 3
    assert after["latency_ms"] == pytest.approx((60 * web + 40 * 26.0) / 100)


def test_a_move_takes_the_farthest_pod_and_it_serves_from_the_next_step_on(env):
    env.place(np.array([[0, 1], [2, 0]]))
    env.step(np.array([NOTHING, NOTHING]))
    _, _, _, _, during = env.step(np.array([MOVE_NEAR, NOTHING]))
    assert pods(env) == [[1, 1], [1, 0]]
    # One pod of two is left to serve, and is overloaded.
    assert env.simulation.backlog[0, 0] > 0.0
    _, _, _, _, after = env.step(np.array([NOTHING, NOTHING]))
    assert after["latency_ms"] < during["latency_ms"]


def test_a_removed_pod_frees_what_it_had(env):
    _, _, _, _, info = env.step(np.array([REMOVE_FAR, NOTHING]))
    assert pods(env) == [[1, 1], [0, 0]]
    assert info["resource"] == pytest.approx(-2.0 * (3 / 12 + 3000 / 24000 + 40 / 200 + 40 / 200 + 100 / 400) / 5)


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ([PLACE_NEAR, NOTHING], "two more cores are not free"),
        ([NOTHING, REMOVE_NEAR], "the last pod stays"),
        ([NOTHING, REMOVE_FAR], "there is none"),
        ([NOTHING, MOVE_NEAR], "it is there already"),
    ],
)
def test_an_operation_that_cannot_be_done_costs_and_changes_nothing(env, operation, why):
    before = pods(env)
    mask = allowed(env.simulation)[0]
    _, _, _, _, info = env.step(np.array(operation))
    assert pods(env) == before, why
    assert info["refused"] == pytest.approx(-0.1)
    assert not all(mask[deployment, chosen] for deployment, chosen in enumerate(operation))


def test_operations_are_done_in_the_order_of_deployments(env):
    # Two cores are needed and one is free: the first takes what is left, the second finds nothing.
    env.place(np.array([[1, 0], [1, 1]]))
    _, _, _, _, info = env.step(np.array([PLACE_NEAR, PLACE_NEAR]))
    assert pods(env) == [[2, 0], [1, 1]]
    assert info["refused"] == pytest.approx(-0.1)


def test_the_mask_allows_exactly_what_can_be_done():
    env = PlacementEnv(nodes=5, deployments=3, node_failures=0.1, max_replicas=4, episode_steps=60)
    seen, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(60):
        mask = seen["action_mask"].reshape(3, -1)
        chosen = rng.integers(3)
        action = np.zeros(3, np.int64)
        action[chosen] = rng.integers(mask.shape[1])
        can = bool(mask[chosen, action[chosen]])
        seen, _, _, _, info = env.step(action)
        assert (info["refused"] == 0.0) == can


def test_a_node_that_fails_loses_its_pods_and_comes_back_empty():
    env = PlacementEnv(cluster=CLUSTER, **{**CALM, "node_failures": 0.2, "repair_steps": 3})
    env.reset(seed=2)
    failed = back = False
    was = env.simulation.alive[0].copy()
    for _ in range(100):
        env.step(np.array([NOTHING, NOTHING]))
        now = env.simulation.alive[0].copy()
        assert not env.simulation.pods[0][~now].any()
        failed |= bool((was & ~now).any())
        back |= bool((~was & now).any()) and not env.simulation.pods[0][~was & now].any()
        was = now
    assert failed
    assert back


def test_in_the_second_version_a_lost_pod_is_placed_where_the_next_action_says():
    one = {**CLUSTER, "deployments": CLUSTER["deployments"][:1]}
    env = PlacementEnv(version=2, cluster=one, **CALM)
    env.reset(seed=0)
    replicas = env.simulation.pods.sum()
    env.place(np.array([[1], [0]]))
    env.step(1)
    assert env.simulation.pods[0].tolist() == [[1], [1]]
    env.step(1)
    assert env.simulation.pods.sum() == min(replicas, 3)


def test_a_deployment_without_pods_loses_every_request(env):
    none = PlacementEnv(cluster=CLUSTER, **{**CALM, "min_replicas": 0})
    none.reset(seed=0)
    _, _, _, _, info = none.place(np.zeros((2, 2), np.int64))
    assert info["latency_ms"] == 1000.0
    assert info["lost"] == 1.0
    assert info["throughput"] == 0.0
