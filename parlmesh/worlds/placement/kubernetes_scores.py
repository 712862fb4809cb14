"""Kubernetes' exact default scores of a node for a pod: truncating integer division, 100 is best.

As in kube-scheduler 1.36: NodeResourcesFit (LeastAllocated), NodeResourcesBalancedAllocation and PodTopologySpread with
the system's default constraint on hostnames. Pod requests and node capacities are integers: millicores, bytes.
"""

import math

import numpy as np

from parlmesh.types import Array

FIT_WEIGHT, BALANCED_WEIGHT, SPREAD_WEIGHT = 1, 1, 2
_BEST = 100
_HOSTNAME_SKEW = 3


def least_allocated(capacity: tuple[int, int], requested: tuple[int, int]) -> int:
    """The percentage that would stay free, averaged over CPU and memory; `requested` includes the pod."""
    free = [0 if used > size else (size - used) * _BEST // size for size, used in zip(capacity, requested, strict=True)]
    return sum(free) // len(free)


def balanced_allocation(capacity: tuple[int, int], before: tuple[int, int], after: tuple[int, int]) -> int:
    """How much the pod brings CPU and memory use closer together; 75 when it changes nothing (since 1.36)."""
    return 50 + (50 + _balance(capacity, after) - _balance(capacity, before)) // 2


def _balance(capacity: tuple[int, int], requested: tuple[int, int]) -> int:
    cpu, memory = (min(used / size, 1.0) for size, used in zip(capacity, requested, strict=True))
    return int((1.0 - abs(cpu - memory) / 2.0) * _BEST)


def topology_spread(counts: Array) -> Array:
    """Scores [N] of nodes by their pods of the deployment so far; every node is its own domain."""
    raw = np.floor(counts * math.log(len(counts) + 2) + (_HOSTNAME_SKEW - 1) + 0.5).astype(np.int64)
    most, least = int(raw.max()), int(raw.min())
    if most == 0:
        return np.full(len(counts), _BEST)
    scores: Array = _BEST * (most + least - raw) // most
    return scores


def chosen_node(capacity: Array, reserved: Array, need: Array, counts: Array, feasible: Array) -> int:
    """The node with the highest score, the first among equals; -1 when no node is feasible.

    `capacity` and `reserved` [N, 2] and `need` [2] are in millicores and bytes; `counts` [N] is the deployment's pods.
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
