"""Topologies, read from GML files or generated."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.mesh.formats.gml import gml_blocks
from parlmesh.types import Array

_LARGEST_FILE_BYTES = 8 * 1024 * 1024
_MOST_NODES = 2000


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes 0 … nodes-1 and undirected edges between different nodes, each once."""

    name: str
    nodes: int
    edges: tuple[tuple[int, int], ...]


def read_topologies(place: Path) -> list[Topology]:
    """The topology in a GML file, or in all GML files of a folder, sorted by name."""
    files = sorted(place.glob("*.gml")) if place.is_dir() else [place]
    if not files:
        raise InvalidInput(f"topology: there is no .gml file in {place}", reason="TOPOLOGY")
    return [_read(file) for file in files]


def generated_topology(nodes: int, seed: int) -> Topology:
    """Random nodes on a square, each linked to its three nearest; separate parts are joined by their shortest link."""
    rng = np.random.default_rng([seed, nodes])
    positions = rng.random((nodes, 2))
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    edges = {
        (min(node, int(other)), max(node, int(other)))
        for node in range(nodes)
        for other in distance[node].argsort()[: min(3, nodes - 1)]
    }
    while True:
        part = _part_of_first(nodes, edges)
        if part.all():
            return Topology(f"generated-{nodes}-{seed}", nodes, tuple(sorted(edges)))
        between = np.where(part[:, None] & ~part[None], distance, np.inf)
        node, other = np.unravel_index(int(between.argmin()), between.shape)
        edges.add((min(int(node), int(other)), max(int(node), int(other))))


def _read(file: Path) -> Topology:
    """The largest connected part of a GML file; labels and all other values are ignored."""
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise InvalidInput(f"topology {file} is larger than {_LARGEST_FILE_BYTES} bytes", reason="TOPOLOGY")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(f"topology {file} cannot be read: {error.strerror}", reason="TOPOLOGY") from error
    try:
        blocks = gml_blocks(text)
        pairs = {tuple(sorted((int(edge["source"]), int(edge["target"])))) for edge in blocks.edges}
        found = _largest_part(
            [int(node["id"]) for node in blocks.nodes], {(one, other) for one, other in pairs if one != other}
        )
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidInput(f"topology {file} is not a GML graph: {error!r}", reason="TOPOLOGY") from error
    nodes, edges = found
    if not 2 <= nodes <= _MOST_NODES:
        said = f"topology {file} must have 2 to {_MOST_NODES} connected nodes, got {nodes}"
        raise InvalidInput(said, reason="TOPOLOGY")
    return Topology(file.stem, nodes, edges)


def _largest_part(nodes: list[int], edges: set[tuple[int, int]]) -> tuple[int, tuple[tuple[int, int], ...]]:
    number = {node: index for index, node in enumerate(nodes)}
    pairs = {(number[source], number[target]) for source, target in edges}
    best = np.zeros(len(nodes), np.bool_)
    left = np.ones(len(nodes), np.bool_)
    while left.any():
        part = _part_of(int(left.argmax()), len(nodes), pairs)
        left &= ~part
        best = part if part.sum() > best.sum() else best
    again = {int(node): index for index, node in enumerate(np.flatnonzero(best))}
    kept = sorted((again[source], again[target]) for source, target in pairs if source in again)
    return len(again), tuple((min(pair), max(pair)) for pair in kept)


def _part_of_first(nodes: int, edges: set[tuple[int, int]]) -> Array:
    return _part_of(0, nodes, edges)


def _part_of(first: int, nodes: int, edges: set[tuple[int, int]]) -> Array:
    """Nodes [N] reachable from the first."""
    near: list[list[int]] = [[] for _ in range(nodes)]
    for source, target in edges:
        near[source].append(target)
        near[target].append(source)
    reached = np.zeros(nodes, np.bool_)
    reached[first] = True
    waiting = [first]
    while waiting:
        for other in near[waiting.pop()]:
            if not reached[other]:
                reached[other] = True
                waiting.append(other)
    return reached
