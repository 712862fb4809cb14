"""Routing without learning. Each baseline chooses one of the offered neighbours for every packet [E]."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from parlmesh.types import Array

from .environment import MeshRoutingVectorEnv
from .link_queue import overflow, waiting
from .mesh_arrays import shortest

RECOMPUTED_EVERY = 4
"""Steps between recomputations of routes."""
# Backlog, in packets, that one unit of ETX to the destination counts as.
_BACKPRESSURE_BIAS = 4.0


class Baseline(ABC):
    """Decides for all packets of an environment."""

    def __init__(self, envs: MeshRoutingVectorEnv, rng: np.random.Generator) -> None:
        self.envs, self.packets, self.rng = envs, envs.packets, rng

    @abstractmethod
    def choose(self) -> Array:
        """The index of a neighbour for each packet [E]."""

    def cheapest(self, cost: Array) -> Array:
        """The neighbour with the least cost [E, K] among all that exist, up or not."""
        found: Array = np.where(self.envs.choices.there, cost, np.inf).argmin(axis=1)
        return found

    def beyond(self, distance: Array) -> Array:
        """Distance from each neighbour to the destination [E, K], from a table [G, N, N]."""
        packets, node = self.packets, self.envs.choices.node
        found: Array = distance[packets.mesh[:, None], node, packets.goal[:, None]]
        return found


class Random(Baseline):
    """Any neighbour whose link is up."""

    def choose(self) -> Array:
        """A random one."""
        choices = self.envs.choices
        usable = np.where(choices.up.any(axis=1, keepdims=True), choices.up, choices.there)
        found: Array = (self.rng.random(usable.shape) * usable).argmax(axis=1)
        return found


class ShortestHop(Baseline):
    """Fewest hops, computed once; among equals, the better path by ETX."""

    def choose(self) -> Array:
        """From the table."""
        return self.cheapest(self.beyond(self.packets.meshes.hops))


class ShortestEtx(Baseline):
    """Least ETX, computed once with all links up."""

    def choose(self) -> Array:
        """The first choice: choices are sorted by ETX."""
        return np.zeros(len(self.packets.node), np.int64)


class Ecmp(Baseline):
    """Any of the neighbours on a path of fewest hops."""

    def choose(self) -> Array:
        """A random one among equals."""
        hops = np.where(self.envs.choices.there, self.beyond(self.packets.meshes.hops), np.inf)
        equal = hops == hops.min(axis=1, keepdims=True)
        found: Array = (self.rng.random(hops.shape) * equal).argmax(axis=1)
        return found


class Recomputed(Baseline):
    """Least ETX over links that are up, recomputed every few steps and known to all nodes at once."""

    def __init__(self, envs: MeshRoutingVectorEnv, rng: np.random.Generator, every: int = RECOMPUTED_EVERY) -> None:
        super().__init__(envs, rng)
        self._every = every
        self._tables: dict[tuple[int, int, int], Array] = {}

    def weight(self, etx: Array, utilisation: Array) -> Array:
        """The cost of a link [L]."""
        return etx

    def choose(self) -> Array:
        """Routes by the latest table; the node also knows the current state of its own links."""
        packets, choices = self.packets, self.envs.choices
        since = packets.time // self._every * self._every
        beyond = np.empty(choices.cost.shape)
        for packet, (mesh, scenario, time) in enumerate(
            zip(packets.mesh.tolist(), packets.scenario.tolist(), since.tolist(), strict=True)
        ):
            table = self._table(mesh, scenario, time)
            beyond[packet] = table[choices.node[packet], packets.goal[packet]]
        etx = packets.meshes.etx[packets.mesh[:, None], choices.link]
        cost = self.weight(etx, choices.utilisation) + beyond
        # A neighbour without a path onwards is still better than a link that is down.
        return self.cheapest(np.where(choices.up, np.minimum(cost, 1e6), np.inf))

    def _table(self, mesh: int, scenario: int, time: int) -> Array:
        key = (mesh, scenario, time)
        if key not in self._tables:
            meshes = self.packets.meshes
            nodes = int(meshes.nodes[mesh])
            source, place = np.nonzero(meshes.link[mesh, :nodes] >= 0)
            target, link = meshes.neighbour[mesh, source, place], meshes.link[mesh, source, place]
            up = meshes.up[mesh, scenario, time, link]
            weight = self.weight(meshes.etx[mesh, link], meshes.utilisation[mesh, scenario, time, link])
            self._tables[key] = shortest(nodes, source[up], target[up], weight[up])
        return self._tables[key]


class LoadAware(Recomputed):
    """Like Recomputed, with the waiting time at a link and the cost of a loss there."""

    def weight(self, etx: Array, utilisation: Array) -> Array:
        """Transmission times including waiting, plus the expected cost of a loss."""
        settings = self.packets.settings
        lost = settings.loss_cost / max(settings.hop_cost, 1e-9) * overflow(utilisation, settings.buffer)
        cost: Array = etx * (1.0 + waiting(utilisation, settings.buffer)) + lost
        return cost


class Backpressure(Baseline):
    """The neighbour with the emptiest queues, with a bias towards the shortest path: without it packets wander."""

    def choose(self) -> Array:
        """Minimises packets queued for the link and behind the neighbour, plus the weighted remaining ETX."""
        packets, choices, meshes = self.packets, self.envs.choices, self.packets.meshes
        mesh, scenario, time = (part[:, None] for part in (packets.mesh, packets.scenario, packets.time))
        buffer = packets.settings.buffer
        behind = waiting(meshes.congestion[mesh, scenario, time, choices.node], buffer)
        here = waiting(choices.utilisation, buffer)
        cost = here + behind + _BACKPRESSURE_BIAS * choices.cost
        return self.cheapest(np.where(choices.up, cost, np.inf))


BASELINES: Mapping[str, type[Baseline]] = {
    "random": Random,
    "shortest-hop": ShortestHop,
    "shortest-etx": ShortestEtx,
    "recomputed-etx": Recomputed,
    "load-aware-etx": LoadAware,
    "ecmp": Ecmp,
    "backpressure": Backpressure,
}
