"""Kubernetes' default scores of a node for a pod, exactly: truncating integer division, 100 the best.

As in kube-scheduler 1.36: NodeResourcesFit (LeastAllocated), NodeResourcesBalancedAllocation and PodTopologySpread with
the system's default constraint on hostnames. Requests of a pod and what a node has are integers: milli-cores, bytes.
"""

import math

import numpy as np

from parlmesh.types import Array

FIT_WEIGHT, BALANCED_WEIGHT, SPREAD_WEIGHT = 1, 1, 2
_BEST = 100
_HOSTNAME_SKEW = 3


def least_allocated(capacity: tuple[int, int], requested: tuple[int, int]) -> int:
    """The mean over CPU and memory of what would stay free, in percent; `requested` includes the pod."""
    free = [0 if used > size else (size - used) * _BEST // size for size, used in zip(capacity, requested, strict=True)]
    return sum(free) // len(free)


def balanced_allocation(capacity: tuple[int, int], before: tuple[int, int], after: tuple[int, int]) -> int:
    """How much the pod brings CPU and memory nearer to each other; 75 when it changes nothing (since 1.36)."""
    return 50 + (50 + _balance(capacity, after) - _balance(capacity, before)) // 2


def _balance(capacity: tuple[int, int], requested: tuple[int, int]) -> int:
    cpu, memory = (min(used / size, 1.0) for size, used in zip(capacity, requested, strict=True))
    return int((1.0 - abs(cpu - memory) / 2.0) * _BEST)


def topology_spread(counts: Array) -> Array:
    """Scores [N] of nodes that have so many pods of the deployment already; every node is a domain of its own."""
    raw = np.floor(counts * math.log(len(counts) + 2) + (_HOSTNAME_SKEW - 1) + 0.5).astype(np.int64)
    most, least = int(raw.max()), int(raw.min())
    if most == 0:
        return np.full(len(counts), _BEST)
    scores: Array = _BEST * (most + least - raw) // most
    return scores


def chosen_node(capacity: Array, reserved: Array, need: Array, counts: Array, feasible: Array) -> int:
    """The node of the highest score, the first of equals; -1 when no node is feasible.

    `capacity` and `reserved` [N, 2] and `need` [2] are milli-cores and bytes, `counts` the deployment's pods [N].
    """
    nodes = np.flatnonzero(feasible)
    if not len(nodes):
        return -1
    spread = topology_spread(counts[nodes])
    best, chosen = -1, -1
    for node, spread_score in zip(nodes.tolist(), spread.tolist(), strict=True):
        size, used = tuple(capacity[node].tolist()), tuple(reserved[node].tolist())
        after = (used[0] + int(need[0]), used[1] + int(need[1]))
        score = FIT_WEIGHT * least_allocated(size, after)
        score += BALANCED_WEIGHT * balanced_allocation(size, used, after) + SPREAD_WEIGHT * spread_score
        if score > best:
            best, chosen = score, node
    return chosen
