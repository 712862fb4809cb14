"""Formulas against known values, and the simulator's latency against queues simulated request by request."""

import heapq

import numpy as np
import pytest

from parlmesh.worlds.placement.environment import PlacementVectorEnv
from parlmesh.worlds.placement.response_times import erlang_c, per_pod_response, shared_quantile, shared_response

# servers, utilisation, probability of waiting, mean time, its 95th percentile, for a service rate of 1.
KNOWN = [
    (1, 0.8, 0.8, 5.0, 14.978661),
    (2, 0.5, 0.333333, 1.333333, 3.816460),
    (4, 0.8, 0.596432, 1.745541, 4.738019),
    (10, 0.9, 0.668732, 1.668732, 4.360867),
    (100, 0.95, 0.506457, 1.101291, 3.114949),
]


@pytest.mark.parametrize(("servers", "busy", "waiting", "time", "slowest"), KNOWN)
def test_formulas_give_the_values_of_the_literature(servers, busy, waiting, time, slowest):
    count, arrivals, rate = np.array([servers]), np.array([busy * servers]), np.array([1.0])
    assert erlang_c(count, arrivals)[0] == pytest.approx(waiting, abs=1e-6)
    assert shared_response(arrivals, rate, count)[0] == pytest.approx(time, abs=1e-6)
    assert shared_quantile(busy * servers, 1.0, servers, 0.95) == pytest.approx(slowest, abs=1e-5)


def test_pods_with_queues_of_their_own_are_slower_than_pods_behind_one():
    four, busy = np.array([4]), np.array([3.2])
    assert per_pod_response(busy, np.array([1.0]), four)[0] == pytest.approx(5.0)
    assert shared_response(busy, np.array([1.0]), four)[0] == pytest.approx(1.745541, abs=1e-6)


def played(arrivals, rate, pods, queue, requests, rng):
    """Mean response time of this many requests, each with its own arrival and service."""
    times = np.cumsum(rng.exponential(1.0 / arrivals, requests))
    services = rng.exponential(1.0 / rate, requests)
    chosen = rng.integers(pods, size=requests)
    free = [0.0] * pods
    total = 0.0
    for at, service, pod in zip(times.tolist(), services.tolist(), chosen.tolist(), strict=True):
        if queue == "shared":
            end = max(at, heapq.heappop(free)) + service
            heapq.heappush(free, end)
        else:
            end = free[pod] = max(at, free[pod]) + service
        total += end - at
    return total / requests


@pytest.mark.parametrize("queue", ["shared", "per_pod"])
@pytest.mark.parametrize("scale", [0.6, 1.0, 1.4])
def test_measured_latency_over_a_long_run_is_within_five_percent_of_the_world(queue, scale):
    near = {"nodes": [{"name": "a", "cpu": 64, "ram": 1e6, "latency_ms": 0.0}], "distance_ms": [[0.0]]}
    near["deployments"] = [{"name": "d", "cpu": 1, "ram": 100, "service_rate": 50.0, "request_rate": 90.0}]
    world = {"cluster": near, "profile": "steady", "load_noise": 0.0, "node_failures": 0.0, "load_scale": scale}
    envs = PlacementVectorEnv(1, version=3, queue=queue, timeout_ms=60_000.0, **world)
    envs.reset(seed=0)
    _, _, _, _, info = envs.place(envs.simulation.pods)
    pods, load = int(envs.simulation.pods.sum()), float(envs.simulation.load[0, 0])
    measured = 1000.0 * played(load, 50.0, pods, queue, 400_000, np.random.default_rng(1))
    assert info["latency_ms"][0] == pytest.approx(measured, rel=0.05)


def test_a_backlog_grows_while_pods_are_overloaded_and_drains_afterwards():
    near = {"nodes": [{"name": "a", "cpu": 64, "ram": 1e6, "latency_ms": 0.0}], "distance_ms": [[0.0]]}
    near["deployments"] = [{"name": "d", "cpu": 1, "ram": 100, "service_rate": 50.0, "request_rate": 90.0}]
    world = {"cluster": near, "profile": "steady", "load_noise": 0.0, "node_failures": 0.0, "timeout_ms": 3e6}
    envs = PlacementVectorEnv(1, version=3, max_replicas=8, **world)
    envs.reset(seed=0)
    one, many = np.array([[[1]]]), np.array([[[8]]])
    envs.place(one)
    assert envs.simulation.backlog[0, 0] == pytest.approx((90.0 - 50.0) * 60.0)
    envs.place(one)
    assert envs.simulation.backlog[0, 0] == pytest.approx((90.0 - 50.0) * 120.0)
    # The other seven start in this step and serve in the next.
    envs.place(many)
    assert envs.simulation.backlog[0, 0] == pytest.approx((90.0 - 50.0) * 180.0)
    envs.place(many)
    assert envs.simulation.backlog[0, 0] == 0.0
