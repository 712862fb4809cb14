"""Closed-form response times of queues, for arrays. Rates are per second, times in seconds."""

import numpy as np

from parlmesh.types import Array

# Steady-state formulas diverge towards a utilisation of 1; beyond this value a backlog accounts for the rest.
SATURATED = 0.98


def erlang_c(servers: Array, offered: Array) -> Array:
    """Probability of waiting in M/M/c; `offered` = arrivals / service rate must be below `servers` >= 1.

    Computes Erlang B by the recursion for 1/B, which neither overflows nor loses precision.
    """
    inverse = np.ones_like(offered)
    load = np.maximum(offered, 1e-12)
    for count in range(1, int(servers.max(initial=0)) + 1):
        inverse = np.where(count <= servers, 1.0 + inverse * (count / load), inverse)
    blocking = 1.0 / inverse
    busy = offered / np.maximum(servers, 1)
    waiting: Array = blocking / (1.0 - busy * (1.0 - blocking))
    return waiting


def shared_response(arrivals: Array, service_rate: Array, servers: Array) -> Array:
    """Mean time in M/M/c: one queue for all servers. Utilisation must be below 1."""
    waiting = erlang_c(servers, arrivals / service_rate)
    response: Array = 1.0 / service_rate + waiting / (servers * service_rate - arrivals)
    return response


def per_pod_response(arrivals: Array, service_rate: Array, servers: Array) -> Array:
    """Mean time in c M/M/1 queues with equal shares of the arrivals: spread at random, not to the shortest."""
    response: Array = 1.0 / (service_rate - arrivals / servers)
    return response


def shared_quantile(arrivals: float, service_rate: float, servers: int, quantile: float) -> float:
    """The `quantile` of the response time in M/M/c, by bisection of its tail."""
    rate = servers * service_rate - arrivals
    waiting = float(erlang_c(np.array([servers]), np.array([arrivals / service_rate]))[0])

    def tail(time: float) -> float:
        """P(T > t): service alone, or an exponential wait followed by service."""
        served = np.exp(-service_rate * time)
        if abs(rate - service_rate) < 1e-9 * service_rate:
            both = (1.0 + service_rate * time) * served
        else:
            both = (rate * served - service_rate * np.exp(-rate * time)) / (rate - service_rate)
        return float((1.0 - waiting) * served + waiting * both)

    low, high = 0.0, 1.0 / service_rate
    while tail(high) > 1.0 - quantile:
        high *= 2.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tail(middle) > 1.0 - quantile else (low, middle)
    return high
