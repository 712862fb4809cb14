"""Link load and link failures over time in one mesh."""

import numpy as np

from parlmesh.types import Array

from .settings import RoutingSettings
from .topology_sources import Topology

# Spread of a link's load around its share of the traffic, and how much of the deviation persists after a step.
_LOAD_SPREAD, _LOAD_MEMORY = 0.5, 0.9


class LinkedMesh:
    """One topology with directed links: edge e becomes link 2e one way and link 2e+1 the other."""

    def __init__(self, topology: Topology, settings: RoutingSettings, index: int) -> None:
        self.topology = topology
        self.rng = np.random.default_rng([settings.topology_seed, index, topology.nodes])
        pairs = np.array(topology.edges)
        self.source = pairs.ravel()
        self.target = pairs[:, ::-1].ravel()
        delivery = self.rng.uniform(settings.worst_delivery, 1.0, len(pairs))
        self.etx = np.repeat(1.0 / delivery, 2)
        self.near: list[list[tuple[int, int]]] = [[] for _ in range(topology.nodes)]
        for link, (source, target) in enumerate(zip(self.source.tolist(), self.target.tolist(), strict=True)):
            self.near[source].append((target, link))


def traffic_shares(mesh: LinkedMesh, distance: Array) -> Array:
    """Each link's share of the traffic between all pairs on shortest paths [L], scaled so that a packet on such a path
    meets a mean of 1."""
    before, after = distance[:, mesh.source], distance[mesh.target]
    # [N, L, N]: whether the link lies on a shortest path from the first node to the last.
    on_path = np.isclose(before[:, :, None] + mesh.etx[None, :, None] + after[None], distance[:, None, :])
    carried = on_path.sum(axis=(0, 2)) - 0.0
    met: float = float((carried * carried).sum() / carried.sum())
    share: Array = carried / met
    return share


def load_course(mesh: LinkedMesh, traffic: Array, settings: RoutingSettings) -> Array:
    """Utilisation [T, L]: the share of the traffic times a slowly varying random factor."""
    rng, steps = mesh.rng, settings.ttl
    load = rng.uniform(*settings.load_range)
    noise = rng.standard_normal((steps, len(traffic)))
    wander = np.empty_like(noise)
    wander[0] = noise[0]
    for step in range(1, steps):
        wander[step] = _LOAD_MEMORY * wander[step - 1] + np.sqrt(1.0 - _LOAD_MEMORY**2) * noise[step]
    # Has a mean of 1 for any spread.
    factor = np.exp(_LOAD_SPREAD * wander - 0.5 * _LOAD_SPREAD**2)
    return np.minimum(load * traffic * factor, 3.0)


def links_up(mesh: LinkedMesh, settings: RoutingSettings) -> Array:
    """Which links are up [T, L]; both directions fail together."""
    steps, edges = settings.ttl, len(mesh.topology.edges)
    fails = mesh.rng.random((steps, edges)) < settings.link_failures
    up = np.ones((steps, edges), np.bool_)
    for step, edge in np.argwhere(fails):
        up[step : step + settings.repair_steps, edge] = False
    return np.repeat(up, 2, axis=1)
