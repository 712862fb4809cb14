"""Simulates packets in flight, many side by side. The caller chooses each packet's next neighbour.

A packet adds no load; it meets the load of its mesh's course. Every hop is one step of that course.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.types import Array

from .link_queue import overflow, undelivered, waiting
from .mesh_arrays import Meshes
from .settings import RoutingSettings

# Uniform random numbers that a packet uses at its start, before those of its hops.
_AT_START = 4


@dataclass(frozen=True, slots=True)
class Choices:
    """Neighbours of the packets' nodes, best for the destination first [E, K]; `there` marks those that exist."""

    node: Array
    link: Array
    there: Array
    up: Array
    cost: Array
    """ETX to the destination through this neighbour, with all links up."""
    utilisation: Array


@dataclass(frozen=True, slots=True)
class Hops:
    """Results of a step, each [E]."""

    cost: Array
    """Transmission times that the hop took, including waiting."""
    etx: Array
    delivered: Array
    lost: Array


class Packets:
    """E packets. The arrays change with every step; copy what you keep."""

    def __init__(self, meshes: Meshes, settings: RoutingSettings, packets: int) -> None:
        self.meshes, self.settings = meshes, settings
        self.mesh = np.zeros(packets, np.int64)
        self.scenario = np.zeros(packets, np.int64)
        self.node = np.zeros(packets, np.int64)
        self.goal = np.zeros(packets, np.int64)
        self.hops = np.zeros(packets, np.int64)
        self.visited = np.zeros((packets, meshes.neighbour.shape[1]), np.bool_)
        self._luck = np.zeros((packets, settings.ttl, 2))
        self._each = np.arange(packets)

    def send(self, which: Array, rngs: list[np.random.Generator]) -> None:
        """Sends new packets, each between two nodes of a random mesh."""
        meshes, settings = self.meshes, self.settings
        for packet, rng in zip(which.tolist(), rngs, strict=True):
            numbers = rng.random(_AT_START + 2 * settings.ttl)
            mesh = int(numbers[0] * len(meshes.nodes))
            nodes = int(meshes.nodes[mesh])
            source = int(numbers[2] * nodes)
            goal = (source + 1 + int(numbers[3] * (nodes - 1))) % nodes
            self.mesh[packet], self.scenario[packet] = mesh, int(numbers[1] * settings.scenarios)
            self.node[packet], self.goal[packet] = source, goal
            self._luck[packet] = numbers[_AT_START:].reshape(-1, 2)
        self.hops[which] = 0
        self.visited[which] = False
        self.visited[which, self.node[which]] = True

    @property
    def time(self) -> Array:
        """The step of the mesh's course [E]."""
        return np.minimum(self.hops, self.settings.ttl - 1)

    @property
    def distance(self) -> Array:
        """ETX to the destination with all links up [E]."""
        found: Array = self.meshes.distance[self.mesh, self.node, self.goal]
        return found

    def choices(self) -> Choices:
        """The current choices at the packets' nodes."""
        meshes, mesh, each = self.meshes, self.mesh, self._each[:, None]
        node, link = meshes.neighbour[mesh, self.node], meshes.link[mesh, self.node]
        etx = meshes.etx[mesh[:, None], link]
        cost = np.where(node >= 0, etx + meshes.distance[mesh[:, None], node, self.goal[:, None]], np.inf)
        order = np.argsort(cost, axis=1, kind="stable")[:, : self.settings.neighbours]
        missing = self.settings.neighbours - order.shape[1]
        node, link, cost = node[each, order], link[each, order], cost[each, order]
        if missing > 0:
            node, link = (np.pad(part, ((0, 0), (0, missing)), constant_values=-1) for part in (node, link))
            cost = np.pad(cost, ((0, 0), (0, missing)), constant_values=np.inf)
        there = node >= 0
        at = (mesh[:, None], self.scenario[:, None], self.time[:, None], link)
        return Choices(node, link, there, there & meshes.up[at], cost, meshes.utilisation[at])

    def step(self, choices: Choices, chosen: Array) -> Hops:
        """One hop of every packet to the chosen neighbour. A missing link or one that is down loses the packet."""
        settings, each = self.settings, self._each
        node, link = choices.node[each, chosen], choices.link[each, chosen]
        etx, load = self.meshes.etx[self.mesh, link], choices.utilisation[each, chosen]
        luck = self._luck[each, self.time]
        dropped = luck[:, 0] < overflow(load, settings.buffer)
        failed = luck[:, 1] < undelivered(etx, settings.retries)
        passed = choices.up[each, chosen] & ~dropped & ~failed
        self.hops = self.hops + 1
        self.node = np.where(passed, node, self.node)
        self.visited[each, self.node] = True
        delivered = passed & (self.node == self.goal)
        late = ~delivered & (self.hops >= settings.ttl)
        return Hops(etx * (1.0 + waiting(load, settings.buffer)), etx, delivered, ~passed | late)
