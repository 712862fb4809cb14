"""Observations and actions of the three versions, over the same simulation. Returned arrays are always fresh."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from parlmesh.errors import InvalidInput
from parlmesh.types import ACTION_MASK, Array

from .cluster_model import RESOURCES
from .operations import allowed, apply_operations, has_room, operation_count
from .simulation import Simulation

_LOAD_LEVELS = 12


class View(Protocol):
    """A version: the spaces of one episode, and the observations and operations of many."""

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """Of one episode."""

    @property
    def action_space(self) -> spaces.Space[Any]:
        """Of one episode."""

    def observe(self, simulation: Simulation) -> Any:
        """Observations; the first axis is the episodes."""

    def act(self, simulation: Simulation, actions: Array) -> tuple[Array, Array]:
        """Where pods are wanted [E, N, D], and how many operations were refused [E]."""


class ScalingView:
    """v1: scales one deployment down, up or not; a state per pair of replicas and load level. Small enough for a table.

    A new pod is placed on the nearest node with room; the farthest one is removed.
    """

    def __init__(self, simulation: Simulation) -> None:
        _one_deployment(simulation, 1)
        self._most = simulation.settings.max_replicas
        self.observation_space = spaces.Discrete((self._most + 1) * _LOAD_LEVELS)
        self.action_space = spaces.Discrete(3)

    def observe(self, simulation: Simulation) -> Array:
        """replicas * levels + load level; load is measured in pods that it would keep busy."""
        busy = simulation.load[:, 0] / simulation.cluster.service_rate[0]
        level = np.clip(busy / self._most * _LOAD_LEVELS, 0, _LOAD_LEVELS - 1).astype(np.int64)
        state: Array = simulation.pods[:, :, 0].sum(axis=1) * _LOAD_LEVELS + level
        return state

    def act(self, simulation: Simulation, actions: Array) -> tuple[Array, Array]:
        """Down, same and up as operations of v3."""
        nodes, distance, pods = len(simulation.cluster.nodes), simulation.distance[:, :, 0], simulation.pods[:, :, 0]
        room = has_room(simulation)[:, :, 0]
        nearest = np.where(room, distance, np.inf).argmin(axis=1)
        last = np.where(pods > 0, distance, -1.0).argmax(axis=1)
        operation = np.choose(actions, (1 + nodes + last, np.zeros_like(last), 1 + nearest))
        return apply_operations(simulation, operation[:, None])


class MovingView:
    """v2: moves the farthest pod of the slowest deployment to a node; observes values between 0 and 1 per node.

    The number of replicas is unchanged; pods lost with a node are placed again first.
    """

    def __init__(self, simulation: Simulation) -> None:
        nodes, deployments = simulation.pods.shape[1:]
        self._scale = simulation.cluster.capacity.max(axis=0)
        self._replicas = simulation.first_replicas()
        self.observation_space = spaces.Box(0.0, 1.0, (nodes * (len(RESOURCES) + 2 + deployments),), np.float32)
        self.action_space = spaces.Discrete(nodes)

    def observe(self, simulation: Simulation) -> Array:
        """For each node: free resources relative to the largest node, the slowest deployment's latency there / 200 ms,
        pods / max_replicas, and whether the pod that would move is there: choosing that node changes nothing."""
        free = simulation.free / self._scale
        slowest = _slowest(simulation)
        each = np.arange(len(slowest))
        pods, distance = simulation.pods[each, :, slowest], simulation.distance[each, :, slowest]
        # Its current latency without the network's share, which is the same at all nodes.
        network = (pods * distance).sum(axis=1) / np.maximum(pods.sum(axis=1), 1)
        waited = np.maximum(simulation.deployment_latency[each, slowest] - network, 0.0)
        latency = (distance + waited[:, None]) / 200.0
        shares = simulation.pods / simulation.settings.max_replicas
        stays = np.zeros_like(latency)
        source = self._source(simulation, slowest)
        stays[each[source >= 0], source[source >= 0]] = 1.0
        joined = np.concatenate((free, latency[:, :, None], shares, stays[:, :, None]), axis=2)
        return _share(joined.reshape(len(free), -1))

    def act(self, simulation: Simulation, actions: Array) -> tuple[Array, Array]:
        """Places a lost pod on the chosen node first; moving the farthest pod to its own node changes nothing."""
        nodes, deployments = simulation.pods.shape[1:]
        slowest = _slowest(simulation)
        each = np.arange(len(slowest))
        source = self._source(simulation, slowest)
        operations = np.zeros((len(slowest), deployments), np.int64)
        moved = np.where(source == actions, 0, 1 + 2 * nodes + actions)
        operations[each, slowest] = np.where(source < 0, 1 + actions, moved)
        return apply_operations(simulation, operations)

    def _source(self, simulation: Simulation, slowest: Array) -> Array:
        """The node [E] of the pod that would move; -1 while a pod is missing, which is placed first."""
        each = np.arange(len(slowest))
        pods, distance = simulation.pods[each, :, slowest], simulation.distance[each, :, slowest]
        missing = pods.sum(axis=1) < self._replicas[slowest]
        return np.where(missing, -1, np.where(pods > 0, distance, -1.0).argmax(axis=1))


class FullView:
    """v3: an operation for every deployment; observes nodes, pods, distances, deployments and the action mask."""

    def __init__(self, simulation: Simulation) -> None:
        nodes, deployments = simulation.pods.shape[1:]
        count = operation_count(nodes)
        self._scale = simulation.cluster.capacity.max(axis=0)
        self.action_space = spaces.MultiDiscrete(np.full(deployments, count))
        self.observation_space = spaces.Dict(
            {
                "nodes": _unit(nodes, len(RESOURCES) + 1),
                "pods": _unit(nodes, deployments),
                "distance": _unit(nodes, deployments),
                "deployments": _unit(deployments, 5),
                "time": _unit(2),
                ACTION_MASK: spaces.MultiBinary(deployments * count),
            }
        )

    def observe(self, simulation: Simulation) -> dict[str, Array]:
        """Values scaled to 0 to 1 and clipped."""
        settings, alive = simulation.settings, simulation.alive[:, :, None]
        angle = 2.0 * np.pi * simulation.time / settings.day_steps
        mask = allowed(simulation)
        return {
            "nodes": _share(np.concatenate((simulation.free / self._scale, alive), axis=2)),
            "pods": _share(simulation.pods / settings.max_replicas),
            "distance": _share(simulation.distance / 100.0),
            "deployments": _share(self._deployments(simulation)),
            "time": _share(0.5 + 0.5 * np.stack((np.sin(angle), np.cos(angle)), axis=1)),
            ACTION_MASK: mask.reshape(len(mask), -1).view(np.int8),
        }

    def act(self, simulation: Simulation, actions: Array) -> tuple[Array, Array]:
        """The actions are the operations."""
        return apply_operations(simulation, actions)

    def _deployments(self, simulation: Simulation) -> Array:
        settings, rate = simulation.settings, simulation.cluster.service_rate
        replicas = simulation.pods.sum(axis=1)
        busy = simulation.load / rate
        parts = (
            busy / settings.max_replicas,
            replicas / settings.max_replicas,
            busy / np.maximum(replicas, 1),
            simulation.deployment_latency / settings.timeout_ms,
            simulation.backlog / (rate * settings.max_replicas * settings.timeout_ms / 1000.0),
        )
        return np.stack(parts, axis=2)


VIEWS: dict[int, Callable[[Simulation], View]] = {1: ScalingView, 2: MovingView, 3: FullView}


def _unit(*shape: int) -> spaces.Box:
    return spaces.Box(0.0, 1.0, shape, np.float32)


def _share(values: Array) -> Array:
    found: Array = np.clip(values, 0.0, 1.0).astype(np.float32)
    return found


def _slowest(simulation: Simulation) -> Array:
    found: Array = simulation.deployment_latency.argmax(axis=1)
    return found


def _one_deployment(simulation: Simulation, version: int) -> None:
    found = len(simulation.cluster.deployments)
    if found != 1:
        raise InvalidInput(
            f"Placement-v{version} has 1 deployment, got {found}; v3 takes several", reason="ENVIRONMENT"
        )
