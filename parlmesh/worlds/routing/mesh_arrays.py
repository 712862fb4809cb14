"""Several meshes as arrays: neighbours, links, distances, and courses of load and failures. Immutable.

G meshes of up to N nodes with up to K neighbours each and up to L directed links; missing neighbours and links are -1.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .load_and_failures import LinkedMesh, links_up, load_course, traffic_shares
from .settings import RoutingSettings
from .topology_sources import Topology, generated_topology, read_topologies

_LARGEST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Meshes:
    """All meshes and their courses of load and failures."""

    names: tuple[str, ...]
    nodes: Array
    """Number of nodes [G]."""
    neighbour: Array
    """Neighbours of a node [G, N, K]."""
    link: Array
    """Link to that neighbour [G, N, K]."""
    etx: Array
    """ETX of a link [G, L]."""
    distance: Array
    """ETX of the shortest path with all links up [G, N, N]."""
    hops: Array
    """Fewest hops [G, N, N]."""
    utilisation: Array
    """Utilisation of a link [G, M, T, L]."""
    up: Array
    """Whether a link is up [G, M, T, L]."""
    onward: Array
    """First link on the shortest path by ETX to a destination [G, N, N]."""
    congestion: Array
    """Mean utilisation of a node's links [G, M, T, N]."""


def build_meshes(settings: RoutingSettings) -> Meshes:
    """Builds the meshes; the settings determine everything."""
    topologies = _topologies(settings)
    built = [LinkedMesh(topology, settings, index) for index, topology in enumerate(topologies)]
    nodes = max(mesh.topology.nodes for mesh in built)
    degree = max(max(len(near) for near in mesh.near) for mesh in built)
    links = max(2 * len(mesh.topology.edges) for mesh in built)
    count, scenarios, steps = len(built), settings.scenarios, settings.ttl
    wanted = count * scenarios * steps * links * 5
    if wanted > _LARGEST_BYTES:
        said = f"the meshes need {wanted:,} bytes, at most {_LARGEST_BYTES:,}; use fewer topologies or scenarios"
        raise InvalidInput(said, reason="ENVIRONMENT")
    meshes = Meshes(
        names=tuple(topology.name for topology in topologies),
        nodes=np.array([topology.nodes for topology in topologies]),
        neighbour=np.full((count, nodes, degree), -1),
        link=np.full((count, nodes, degree), -1),
        etx=np.ones((count, links)),
        distance=np.full((count, nodes, nodes), np.inf),
        hops=np.full((count, nodes, nodes), np.inf),
        utilisation=np.zeros((count, scenarios, steps, links), np.float32),
        up=np.ones((count, scenarios, steps, links), np.bool_),
        onward=np.zeros((count, nodes, nodes), np.int64),
        congestion=np.zeros((count, scenarios, steps, nodes), np.float32),
    )
    for index, mesh in enumerate(built):
        _fill(meshes, index, mesh, settings)
    return meshes


def shortest(nodes: int, source: Array, target: Array, weight: Array) -> Array:
    """Lengths of shortest paths [N, N] over directed links [L] (Floyd–Warshall); infinite where there is no path."""
    found = np.full((nodes, nodes), np.inf)
    np.minimum.at(found, (source, target), weight)
    np.fill_diagonal(found, 0.0)
    for middle in range(nodes):
        np.minimum(found, found[:, middle, None] + found[None, middle], out=found)
    return found


def _topologies(settings: RoutingSettings) -> list[Topology]:
    if settings.topology is None:
        first = settings.topology_seed * settings.networks
        return [generated_topology(settings.nodes, first + index) for index in range(settings.networks)]
    found = read_topologies(settings.topology)
    if settings.topologies:
        by_name = {topology.name: topology for topology in found}
        missing = [name for name in settings.topologies if name not in by_name]
        if missing:
            said = f"topologies: {', '.join(missing)} is not in {settings.topology}"
            raise InvalidInput(said, reason="TOPOLOGY")
        found = [by_name[name] for name in settings.topologies]
    return found


def _fill(meshes: Meshes, index: int, mesh: LinkedMesh, settings: RoutingSettings) -> None:
    nodes, links = mesh.topology.nodes, len(mesh.source)
    for node, near in enumerate(mesh.near):
        meshes.neighbour[index, node, : len(near)] = [other for other, _ in near]
        meshes.link[index, node, : len(near)] = [link for _, link in near]
    meshes.etx[index, :links] = mesh.etx
    distance = shortest(nodes, mesh.source, mesh.target, mesh.etx)
    meshes.distance[index, :nodes, :nodes] = distance
    meshes.hops[index, :nodes, :nodes] = shortest(nodes, mesh.source, mesh.target, np.ones(links))
    for node, near in enumerate(mesh.near):
        over = np.array([[link, *(mesh.etx[link] + distance[other])] for other, link in near])
        meshes.onward[index, node, :nodes] = over[over[:, 1:].argmin(axis=0), 0].astype(np.int64)
    traffic = traffic_shares(mesh, distance)
    for scenario in range(settings.scenarios):
        meshes.utilisation[index, scenario, :, :links] = load_course(mesh, traffic, settings)
        meshes.up[index, scenario, :, :links] = links_up(mesh, settings)
        for node, near in enumerate(mesh.near):
            found = meshes.utilisation[index, scenario][:, [link for _, link in near]]
            meshes.congestion[index, scenario, :, node] = found.mean(axis=1)
