"""Turns actions into wanted placements. An operation that cannot be done is counted and changes nothing.

Each deployment has one operation per step, a number: 0 = no change, 1 .. N place a pod on that node, N+1 .. 2N remove
one from it, 2N+1 .. 3N move the pod farthest from its users to it. Deployments are processed in order.
"""

import numpy as np

from parlmesh.types import Array

from .simulation import Simulation


def operation_count(nodes: int) -> int:
    """Number of operations per deployment."""
    return 1 + 3 * nodes


def apply_operations(simulation: Simulation, operations: Array) -> tuple[Array, Array]:
    """Where pods are wanted [E, N, D] after the operations [E, D], and how many were refused [E]."""
    cluster, settings = simulation.cluster, simulation.settings
    nodes = len(cluster.nodes)
    wanted = simulation.pods.copy()
    free, alive, distance = simulation.free.copy(), simulation.alive, simulation.distance
    refused = np.zeros(len(wanted))
    each = np.arange(len(wanted))
    for deployment in range(operations.shape[1]):
        operation = operations[:, deployment]
        verb, node = np.divmod(operation - 1, nodes)
        # Operation 0 has no node; any index works.
        node = np.where(operation > 0, node, 0)
        need = cluster.need[deployment]
        pods = wanted[:, :, deployment]
        replicas = pods.sum(axis=1)
        source = farthest(pods, distance[:, :, deployment], node)
        fits = alive[each, node] & (free[each, node] >= need).all(axis=1)
        places = (operation > 0) & (verb == 0) & fits & (replicas < settings.max_replicas)
        removes = (verb == 1) & (pods[each, node] > 0) & (replicas > settings.min_replicas)
        moves = (verb == 2) & fits & (source >= 0)
        leaves = removes | moves
        origin = np.where(moves, source, node)
        wanted[each, node, deployment] += places | moves
        wanted[each, origin, deployment] -= leaves
        free[each, node] -= (places | moves)[:, None] * need
        free[each, origin] += leaves[:, None] * need
        refused += (operation > 0) & ~(places | leaves)
    return wanted, refused


def farthest(pods: Array, distance: Array, but: Array) -> Array:
    """The node [E] of the pod [E, N] farthest from its users, not counting node `but` [E]; -1 if there is none."""
    each = np.arange(len(pods))
    counted = np.where(pods > 0, distance, -1.0)
    counted[each, but] = -1.0
    found = counted.argmax(axis=1)
    return np.where(counted[each, found] < 0.0, -1, found)


def has_room(simulation: Simulation) -> Array:
    """Whether another pod of a deployment fits on a node that is up [E, N, D]."""
    free, need = simulation.free, simulation.cluster.need
    room: Array = np.repeat(simulation.alive[:, :, None], len(need), axis=2)
    # Loop over resources: a reduction over such a short axis is much slower.
    for resource in range(need.shape[1]):
        room &= free[:, :, resource, None] >= need[:, resource]
    return room


def allowed(simulation: Simulation) -> Array:
    """Operations that can be done unless another deployment takes the room first [E, D, 1 + 3N]."""
    settings, pods, nodes = simulation.settings, simulation.pods, simulation.pods.shape[1]
    room = has_room(simulation)
    replicas = pods.sum(axis=1, keepdims=True)
    places = room & (replicas < settings.max_replicas)
    removes = (pods > 0) & (replicas > settings.min_replicas)
    moves = room & (replicas - pods > 0)
    found = np.ones((len(pods), pods.shape[2], operation_count(nodes)), np.bool_)
    for verb, can in enumerate((places, removes, moves)):
        found[:, :, 1 + verb * nodes : 1 + (verb + 1) * nodes] = can.transpose(0, 2, 1)
    return found
