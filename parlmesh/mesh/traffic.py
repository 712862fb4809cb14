"""Routes demands over shortest paths: the load of every link, and the bottleneck."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .formats import read_text
from .formats.attribute_names import as_number
from .formats.sndlib import is_sndlib, sndlib_network
from .graph import Graph
from .measured_mesh import Mesh

MOST_DEMANDS = 1_000_000
_COLUMNS = ("source", "target", "volume")


@dataclass(frozen=True, slots=True)
class Demands:
    """Traffic between nodes, by node number."""

    source: Array
    target: Array
    volume: Array
    """Mbit/s."""

    @classmethod
    def of(cls, mesh: Mesh, rows: list[tuple[str, str, float]]) -> "Demands":
        """Demands from rows with node names."""
        if len(rows) > MOST_DEMANDS:
            raise InvalidInput(f"there are {len(rows)} demands; at most {MOST_DEMANDS} are allowed", reason="DEMANDS")
        number = {node: index for index, node in enumerate(mesh.nodes)}
        for source, target, volume in rows:
            for end in (source, target):
                if end not in number:
                    raise InvalidInput(
                        f"a demand names the node {end!r:.200}, which {mesh.name} does not have", reason="DEMANDS"
                    )
            if not 0 <= volume < float("inf"):
                raise InvalidInput(
                    f"the demand {source} – {target} is {volume}; it must be 0 or more", reason="DEMANDS"
                )
        return cls(
            np.array([number[row[0]] for row in rows], np.int32),
            np.array([number[row[1]] for row in rows], np.int32),
            np.array([row[2] for row in rows], np.float64),
        )


@dataclass(frozen=True, slots=True)
class Loads:
    """The load of demands on the links of a graph."""

    load: Array
    """Mbit/s on each link [L]."""
    unrouted: float
    """Mbit/s between nodes without a path."""

    def bottleneck(self, capacity: Array) -> tuple[int, float]:
        """The link with the highest utilisation, and that utilisation; -1 when no link carries anything."""
        used = np.where(self.load > 0, self.load / capacity, 0.0)
        if not len(used) or not self.load.any():
            return -1, 0.0
        worst = int(used.argmax())
        return worst, float(used[worst])


class Neighbours:
    """Links by source node, in columns, so that many demands can advance at once."""

    def __init__(self, graph: Graph) -> None:
        starts = np.searchsorted(graph.source, np.arange(graph.nodes + 1))
        most = max(1, int(np.diff(starts).max(initial=0)))
        columns = starts[:-1, None] + np.arange(most)
        there = columns < starts[1:, None]
        self.link = np.where(there, columns, -1)
        self.node = np.zeros(columns.shape, np.int64)
        self.node[there] = graph.target
        self.cost = np.full(columns.shape, np.inf)
        self.cost[there] = graph.cost

    def loads(self, distance: Array, demands: Demands, links: int, failed: Array | None = None) -> Loads:
        """Routes every demand along its next hops, with the routing table's ties. `failed` [L] masks failed links."""
        cost = self.cost if failed is None else np.where(failed[self.link], np.inf, self.cost)
        load = np.zeros(links)
        reached = np.isfinite(distance[demands.source, demands.target])
        going = np.flatnonzero(reached & (demands.source != demands.target))
        node, goal, volume = demands.source[going], demands.target[going], demands.volume[going]
        while len(node):
            through = cost[node] + distance[self.node[node], goal[:, None]]
            column = through.argmin(axis=1)
            np.add.at(load, self.link[node, column], volume)
            node = self.node[node, column]
            left = node != goal
            node, goal, volume = node[left], goal[left], volume[left]
        return Loads(load, float(demands.volume[~reached].sum()))


def capacities(mesh: Mesh, graph: Graph, default: float | None = None) -> Array:
    """Each link's capacity in Mbit/s [L]; a link without one takes the default, or raises InvalidInput."""
    known = {(link.source, link.target, link.cable): link.rate_mbps for link in mesh.links}
    found = np.empty(len(graph.source))
    columns = zip(graph.source.tolist(), graph.target.tolist(), graph.cable.tolist(), strict=True)
    for index, key in enumerate(columns):
        rate = known[key] if known[key] is not None else default
        if rate is None or not rate > 0:
            raise InvalidInput(
                f"{mesh.name}: the link {mesh.cable_name(key[2])} has no capacity; --capacity sets one for such links",
                reason="DEMANDS",
            )
        found[index] = rate
    return found


def read_demands(mesh: Mesh, file: Path) -> Demands:
    """Reads CSV with the columns source, target, volume; JSON, a list of such objects, also under `demands`; or SNDlib.

    SNDlib's `demandValue` and `demand_value` are read as the volume.
    """
    text = read_text(file)
    try:
        if is_sndlib(text):
            return Demands.of(mesh, sndlib_network(text).demands)
        rows = _json_rows(json.loads(text)) if text.lstrip()[:1] in "[{" else list(csv.DictReader(text.splitlines()))
        return Demands.of(mesh, [_row(file, row) for row in rows])
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        RecursionError,
        csv.Error,
        ParseError,
    ) as error:
        raise InvalidInput(
            f"{file} must be CSV with the columns {', '.join(_COLUMNS)}, JSON with these keys or SNDlib: {error!r:.99}",
            reason="DEMANDS",
        ) from error


def _json_rows(document: Any) -> list[dict[str, Any]]:
    listed = document["demands"] if isinstance(document, dict) else document
    return list(listed.values()) if isinstance(listed, dict) else list(listed)


def _row(file: Path, row: dict[str, Any]) -> tuple[str, str, float]:
    volume = next((row[key] for key in ("volume", "demandValue", "demand_value") if key in row), None)
    number = as_number(volume)
    if number is None:
        raise InvalidInput(f"{file}: a demand needs a volume, got {volume!r:.200}", reason="DEMANDS")
    return str(row["source"]), str(row["target"]), number


def gravity_demands(mesh: Mesh, total: float, seed: int = 0) -> Demands:
    """Demands between all pairs, proportional to random node sizes."""
    size = np.random.default_rng(seed).lognormal(0.0, 1.0, len(mesh.nodes))
    share = np.outer(size, size)
    np.fill_diagonal(share, 0.0)
    source, target = np.nonzero(share)
    return Demands(source.astype(np.int32), target.astype(np.int32), share[source, target] * total / share.sum())
