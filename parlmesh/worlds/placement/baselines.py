"""Placement without learning. Baselines are not limited to one operation per step: each decides where all pods go.

The two greedy ones and Kubernetes take replicas from its autoscaler; they differ in the node they choose for a pod.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from parlmesh.types import Array

from .autoscaling import Autoscaler
from .kubernetes_scores import chosen_node
from .operations import allowed, apply_operations
from .simulation import Simulation

TARGET_UTILISATION = 0.6
# A moving pod serves nothing for a step, so the remaining pods must carry the load.
_MOVING_UTILISATION = 0.9


class Baseline(ABC):
    """Decides for all episodes of a simulation; make a new one for new episodes."""

    def __init__(self, simulation: Simulation, rng: np.random.Generator, *, target: float = TARGET_UTILISATION) -> None:
        self.simulation = simulation
        self.rng = rng
        self.target = target

    @abstractmethod
    def wanted(self) -> Array:
        """Where pods should be [E, N, D]."""


class Random(Baseline):
    """A random allowed operation for each deployment."""

    def wanted(self) -> Array:
        """The placement after the random operations."""
        chances = self.rng.random(allowed(self.simulation).shape) * allowed(self.simulation)
        placed, _ = apply_operations(self.simulation, chances.argmax(axis=2))
        return placed


class Static(Baseline):
    """Pods sized for the mean load, spread evenly and left there; a repaired node gets its pods back."""

    def wanted(self) -> Array:
        """Such pods on every node that is up."""
        placed = self.simulation.spread(self.simulation.first_replicas())
        return np.where(self.simulation.alive[:, :, None], placed, 0)


class Scaled(Baseline):
    """Replicas from the autoscaler; nodes from `choose`."""

    def __init__(self, simulation: Simulation, rng: np.random.Generator, *, target: float = TARGET_UTILISATION) -> None:
        super().__init__(simulation, rng, target=target)
        settings = simulation.settings
        self._scaler = Autoscaler(target, settings.step_seconds, settings.min_replicas, settings.max_replicas)

    def wanted(self) -> Array:
        """Adds and removes pods one by one until the numbers are right or nothing fits."""
        world = self.simulation
        replicas = world.pods.sum(axis=1)
        busy = world.load / world.cluster.service_rate
        # Without a pod nothing is measured; the autoscaler starts one.
        utilisation = np.where(replicas > 0, busy / np.maximum(replicas, 1), self.target)
        asked = self._scaler.wanted(replicas, utilisation)
        placed, free = world.pods.copy(), world.free.copy()
        for episode, deployment in np.argwhere(asked != replicas):
            self._adjust(int(episode), int(deployment), int(asked[episode, deployment]), placed, free)
        self._move(placed, free, busy)
        return placed

    @abstractmethod
    def choose(self, episode: int, deployment: int, placed: Array, free: Array, feasible: Array) -> int:
        """The node for another pod; `feasible` [N] has at least one True."""

    @abstractmethod
    def release(self, episode: int, deployment: int, placed: Array, free: Array) -> int:
        """The node from which a pod is removed."""

    def _move(self, placed: Array, free: Array, busy: Array) -> None:
        """Moves pods that are better elsewhere; Kubernetes moves none."""

    def _adjust(self, episode: int, deployment: int, asked: int, placed: Array, free: Array) -> None:
        need, here, room = self.simulation.cluster.need[deployment], placed[episode], free[episode]
        while here[:, deployment].sum() < asked:
            feasible = self._feasible(episode, deployment, room)
            if not feasible.any():
                return
            node = self.choose(episode, deployment, here, room, feasible)
            here[node, deployment] += 1
            room[node] -= need
        while here[:, deployment].sum() > asked:
            node = self.release(episode, deployment, here, room)
            here[node, deployment] -= 1
            room[node] += need

    def _feasible(self, episode: int, deployment: int, room: Array) -> Array:
        fits: Array = (room >= self.simulation.cluster.need[deployment]).all(axis=1)
        feasible: Array = fits & self.simulation.alive[episode]
        return feasible


class GreedyLatency(Scaled):
    """Chooses the node nearest to the users; a pod moves when a nearer node has room."""

    def choose(self, episode: int, deployment: int, placed: Array, free: Array, feasible: Array) -> int:
        """The nearest node."""
        return int(np.where(feasible, self.simulation.distance[episode, :, deployment], np.inf).argmin())

    def release(self, episode: int, deployment: int, placed: Array, free: Array) -> int:
        """The farthest node."""
        distance = self.simulation.distance[episode, :, deployment]
        return int(np.where(placed[:, deployment] > 0, distance, -1.0).argmax())

    def _move(self, placed: Array, free: Array, busy: Array) -> None:
        replicas, distance = placed.sum(axis=1), self.simulation.distance
        for episode, deployment in np.argwhere((replicas > 1) & (busy < _MOVING_UTILISATION * (replicas - 1))):
            here, room = placed[episode], free[episode]
            feasible = self._feasible(int(episode), int(deployment), room)
            if not feasible.any():
                continue
            source = self.release(int(episode), int(deployment), here, room)
            target = self.choose(int(episode), int(deployment), here, room, feasible)
            if distance[episode, target, deployment] < distance[episode, source, deployment]:
                need = self.simulation.cluster.need[deployment]
                here[source, deployment] -= 1
                room[source] += need
                here[target, deployment] += 1
                room[target] -= need


class GreedyLoad(Scaled):
    """Chooses the node that would be least utilised."""

    def choose(self, episode: int, deployment: int, placed: Array, free: Array, feasible: Array) -> int:
        """The least utilised node by its scarcest resource."""
        capacity = self.simulation.cluster.capacity
        used = ((capacity - free + self.simulation.cluster.need[deployment]) / capacity).max(axis=1)
        return int(np.where(feasible, used, np.inf).argmin())

    def release(self, episode: int, deployment: int, placed: Array, free: Array) -> int:
        """The most utilised node."""
        capacity = self.simulation.cluster.capacity
        used = ((capacity - free) / capacity).max(axis=1)
        return int(np.where(placed[:, deployment] > 0, used, -1.0).argmax())


class Kubernetes(Scaled):
    """Kubernetes' default scheduler and autoscaler, but a lost pod is replaced immediately, not after five minutes."""

    def choose(self, episode: int, deployment: int, placed: Array, free: Array, feasible: Array) -> int:
        """Fit + Balanced + 2 · Spread."""
        cluster = self.simulation.cluster
        scale = np.array([1000.0, 1e6])
        capacity = np.rint(cluster.capacity[:, :2] * scale).astype(np.int64)
        reserved = capacity - np.rint(free[:, :2] * scale).astype(np.int64)
        need = np.rint(cluster.need[deployment, :2] * scale).astype(np.int64)
        return chosen_node(capacity, reserved, need, placed[:, deployment], feasible)

    def release(self, episode: int, deployment: int, placed: Array, free: Array) -> int:
        """The node with the most pods of the deployment, as a ReplicaSet ranks pods for deletion."""
        return int(placed[:, deployment].argmax())


BASELINES: Mapping[str, type[Baseline]] = {
    "random": Random,
    "static": Static,
    "greedy-latency": GreedyLatency,
    "greedy-load": GreedyLoad,
    "kubernetes": Kubernetes,
}
