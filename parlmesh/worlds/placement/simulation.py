"""Simulates a cluster under load, many episodes side by side. The caller decides where pods should be.

A placed pod starts during the step and serves from the next one on; a removed pod stops immediately. A failed node
loses its pods. Requests that find no free pod wait, and the backlog carries over to the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parlmesh.types import Array

from .cluster_model import RESOURCES, Cluster
from .episode_conditions import Conditions
from .response_times import SATURATED, per_pod_response, shared_response
from .settings import PlacementSettings

# Utilisation for which the initial replicas are sized.
_COMFORTABLE = 0.45


@dataclass(frozen=True, slots=True)
class Served:
    """Results of a step, each [E]. The reward is the sum of the first four, which are <= 0."""

    latency: Array
    resource: Array
    balance: Array
    refused: Array
    latency_ms: Array
    """Mean request latency."""
    lost: Array
    """Share of requests that were never answered."""
    throughput: Array
    """Requests answered per second."""

    @property
    def reward(self) -> Array:
        """The sum of the costs."""
        total: Array = self.latency + self.resource + self.balance + self.refused
        return total


class Simulation:
    """E episodes. The arrays change with every step; copy what you keep."""

    def __init__(self, cluster: Cluster, settings: PlacementSettings, episodes: int) -> None:
        self.cluster, self.settings = cluster, settings
        nodes, deployments, rows = len(cluster.nodes), len(cluster.deployments), settings.episode_steps + 1
        self.pods = np.zeros((episodes, nodes, deployments), np.int64)
        self.backlog = np.zeros((episodes, deployments))
        self.time = np.zeros(episodes, np.int64)
        self.deployment_latency = np.zeros((episodes, deployments))
        """Mean latency of each deployment in the last step, in milliseconds."""
        self.load = np.zeros((episodes, deployments))
        """Requests per second in the last step."""
        self.alive = np.ones((episodes, nodes), np.bool_)
        self.distance = np.zeros((episodes, nodes, deployments))
        """Milliseconds from a deployment's users to a node."""
        self.free = np.zeros((episodes, nodes, len(RESOURCES)))
        """Unreserved resources; 0 on nodes that are down."""
        self._load = np.zeros((episodes, rows, deployments))
        self._site = np.zeros((episodes, rows, deployments), np.int64)
        self._alive = np.ones((episodes, rows, nodes), np.bool_)
        self._each = np.arange(episodes)
        share, distance = settings.concentration, cluster.distance
        self.users_distance = np.ascontiguousarray((share * distance + (1.0 - share) * distance.mean(axis=0)).T)
        """Milliseconds from users at a site to a node [N, S]."""
        self._total = cluster.capacity.sum(axis=0)
        self._first = self.spread(self.first_replicas())

    def begin(self, which: Sequence[int] | Array, conditions: Sequence[Conditions]) -> None:
        """Restarts these episodes, with pods sized for the mean load and spread over the nodes in turn."""
        for episode, drawn in zip(which, conditions, strict=True):
            self._load[episode], self._site[episode], self._alive[episode] = drawn.load, drawn.site, drawn.alive
        self.time[which] = 0
        self.backlog[which] = 0.0
        self.pods[which] = self._first
        self._look()
        shown = self.latency(self.pods[which], self.backlog[which], self.load[which], self.distance[which])
        self.deployment_latency[which] = shown[0]
        self.reserve()

    def show(self, pods: Array, alive: Array, load: Array, latency_ms: Array, site: Array) -> Served:
        """Sets the first episode's state to external measurements, and returns its cost."""
        self.pods[0], self.alive[0], self.load[0], self.deployment_latency[0] = pods, alive, load, latency_ms
        self.distance = self.users_distance[:, site][None].repeat(len(self.pods), axis=0)
        self.backlog[0] = 0.0
        zero = np.zeros(len(self.pods))
        return self._cost(self.reserve(), zero, zero)

    def expected_latency(self, pods: Array, load: Array, distance: Array) -> Array:
        """Latency of each deployment [D] in milliseconds when all pods [N, D] serve and there is no backlog."""
        milliseconds, _, _ = self.latency(pods[None], np.zeros_like(load)[None], load[None], distance[None])
        found: Array = milliseconds[0]
        return found

    @property
    def ended(self) -> Array:
        """Episodes that have reached their last step [E]."""
        done: Array = self.time >= self.settings.episode_steps
        return done

    def coming(self, episode: int) -> Conditions:
        """All conditions of one episode, including future ones; no policy may use them."""
        return Conditions(self._load[episode], self._site[episode], self._alive[episode])

    def first_replicas(self) -> Array:
        """Pods [D] with a comfortable utilisation at the mean load."""
        cluster, settings = self.cluster, self.settings
        wanted = np.ceil(cluster.request_rate * settings.load_scale / (_COMFORTABLE * cluster.service_rate))
        fitted: Array = np.clip(wanted, max(1, settings.min_replicas), settings.max_replicas).astype(np.int64)
        return fitted

    def spread(self, replicas: Array) -> Array:
        """Spreads this many pods [D] over the nodes in turn, where there is room [N, D]."""
        nodes = len(self.cluster.nodes)
        placed = np.zeros((nodes, len(replicas)), np.int64)
        free = self.cluster.capacity.copy()
        turn = 0
        for _ in range(int(replicas.max())):
            for deployment in np.flatnonzero(placed.sum(axis=0) < replicas):
                for node in (np.arange(nodes) + turn) % nodes:
                    if (free[node] >= self.cluster.need[deployment]).all():
                        free[node] -= self.cluster.need[deployment]
                        placed[node, deployment] += 1
                        turn = int(node) + 1
                        break
        return placed

    def step(self, wanted: Array, refused: Array) -> Served:
        """Moves pods to where they are wanted [E, N, D] and serves the load of one step."""
        serving = np.minimum(self.pods, wanted)
        # The time of an ended episode does not advance.
        self.time = np.minimum(self.time + 1, self.settings.episode_steps)
        self._look()
        alive = self.alive[:, :, None]
        self.pods = np.where(alive, wanted, 0)
        serving = np.where(alive, serving, 0)
        load = self.load
        self.deployment_latency, self.backlog, lost = self.latency(serving, self.backlog, load, self.distance)
        asked = np.maximum(load.sum(axis=1), 1e-12) * self.settings.step_seconds
        return self._cost(self.reserve(), np.minimum(lost.sum(axis=1) / asked, 1.0), refused)

    def _cost(self, reserved: Array, gone: Array, refused: Array) -> Served:
        total = np.maximum(self.load.sum(axis=1), 1e-12)
        mean = (self.deployment_latency * self.load).sum(axis=1) / total
        resource, balance = self.reservation(reserved)
        weights = self.settings.weights
        return Served(
            latency=-weights.latency * mean / 100.0,
            resource=-weights.resource * resource,
            balance=-weights.balance * balance,
            refused=-weights.refused * refused,
            latency_ms=mean,
            lost=gone,
            throughput=total * (1.0 - gone),
        )

    def _look(self) -> None:
        """Updates load, nodes and distances to the current time."""
        self.load, self.alive = self._load[self._each, self.time], self._alive[self._each, self.time]
        # Indexing gives [N, E, D].
        self.distance = self.users_distance[:, self._site[self._each, self.time]].transpose(1, 0, 2)

    def reserve(self) -> Array:
        """Resources reserved by pods [E, N, R]; updates `free`."""
        reserved: Array = self.pods @ self.cluster.need
        self.free = np.where(self.alive[:, :, None], self.cluster.capacity - reserved, 0.0)
        return reserved

    def latency(self, serving: Array, backlog: Array, load: Array, distance: Array) -> tuple[Array, Array, Array]:
        """Latency in milliseconds, the new backlog and the lost requests, each [E, D]."""
        settings, rate = self.settings, self.cluster.service_rate
        pods = serving.sum(axis=1)
        some = np.maximum(pods, 1)
        capacity = some * rate
        arrivals = np.minimum(load, SATURATED * capacity)
        respond = shared_response if settings.queue == "shared" else per_pod_response
        waiting = backlog + (load - capacity) * settings.step_seconds
        # Requests that would wait past the timeout are dropped by the end of the step.
        kept = np.clip(waiting, 0.0, capacity * settings.timeout_ms / 1000.0)
        seconds = respond(arrivals, rate, some) + 0.5 * (backlog + kept) / capacity
        network = (serving * distance).sum(axis=1) / some
        milliseconds = np.minimum(1000.0 * seconds + network, settings.timeout_ms)
        lost = np.maximum(waiting - kept, 0.0)
        none = pods == 0
        return (
            np.where(none, settings.timeout_ms, milliseconds),
            np.where(none, 0.0, kept),
            np.where(none, backlog + load * settings.step_seconds, lost),
        )

    def reservation(self, reserved: Array) -> tuple[Array, Array]:
        """Reserved share of the cluster, and its imbalance: the mean absolute deviation of the nodes' utilisation. Both
        are averaged over resources [E]."""
        share = (reserved.sum(axis=1) / self._total).mean(axis=1)
        used = reserved / self.cluster.capacity
        nodes = self.alive.sum(axis=1)
        mean = used.sum(axis=1) / nodes[:, None]
        deviation = np.abs(used - mean[:, None]).mean(axis=2) * self.alive
        return share, deviation.sum(axis=1) / nodes
