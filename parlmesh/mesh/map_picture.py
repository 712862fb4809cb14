"""A map of a mesh as PNG or SVG: nodes coloured by health, links by load or by cost. Needs matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .graph import Graph
from .measured_mesh import Mesh

HEALTH_COLOURS = {"healthy": "#2a9d4a", "degraded": "#e9a820", "failing": "#d62839", "unknown": "#9aa0a6"}
_NAMES_UP_TO = 60


def draw_map(
    file: Path,
    mesh: Mesh,
    graph: Graph,
    *,
    health: Mapping[str, str] | None = None,
    utilisation: Array | None = None,
    title: str = "",
    highlight: list[int] | None = None,
) -> Path:
    """Draws the map. Links are coloured by `utilisation` [L], or by cost without it; `highlight` is a path of nodes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    if file.suffix not in (".png", ".svg"):
        raise InvalidInput(f"{file} must end in .png or .svg", reason="PICTURE")
    told = dict(health or {})
    for node, word in told.items():
        if word not in HEALTH_COLOURS:
            raise InvalidInput(f"{node} is {word!r}; health is one of {', '.join(HEALTH_COLOURS)}", reason="PICTURE")
    places = _apart(positions_of(mesh, graph))
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    ends, values, label = _lines(graph, utilisation)
    segments = LineCollection(
        [places[list(pair)] for pair in ends], cmap="RdYlGn_r", linewidths=_widths(values, utilisation), zorder=1
    )
    segments.set_array(values)
    if utilisation is not None:
        segments.set_clim(0.0, max(1.0, float(values.max(initial=0.0))))
    axes.add_collection(segments)
    if highlight:
        axes.plot(places[highlight, 0], places[highlight, 1], color="#8ecae6", linewidth=12, zorder=0)
    shown = [told.get(node, "unknown") for node in mesh.nodes]
    size = float(np.clip(6000 / len(mesh.nodes), 12, 220))
    axes.scatter(
        places[:, 0], places[:, 1], s=size, c=[HEALTH_COLOURS[word] for word in shown], edgecolors="white", zorder=3
    )
    if len(mesh.nodes) <= _NAMES_UP_TO:
        for name, (x, y) in zip(mesh.nodes, places, strict=True):
            axes.annotate(name, (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8, zorder=4)
    if len(ends):
        figure.colorbar(segments, ax=axes, label=label, shrink=0.6)
    words = [word for word in HEALTH_COLOURS if word in shown]
    dots: list[Any] = [
        Line2D([], [], marker="o", linestyle="", color=HEALTH_COLOURS[word], label=f"{word} ({shown.count(word)})")
        for word in words
    ]
    axes.legend(handles=dots, loc="best")
    axes.set_title(title or f"{mesh.name}: {len(mesh.nodes)} nodes, {mesh.cables} links")
    axes.margins(0.08)
    axes.set_xticks([])
    axes.set_yticks([])
    if mesh.geographic:
        # Degrees of longitude get narrower away from the equator.
        axes.set_aspect(1.0 / max(0.2, float(np.cos(np.radians(np.median(places[:, 1]))))))
    figure.savefig(file, dpi=120)
    return file


def positions_of(mesh: Mesh, graph: Graph) -> Array:
    """Where nodes are drawn [N, 2]: at their positions if all are known, or by a spring layout of their links."""
    known = mesh.positions
    if known and all(place is not None for place in known):
        return np.array(known, np.float64)
    import networkx

    drawn = networkx.Graph()
    drawn.add_nodes_from(range(graph.nodes))
    drawn.add_edges_from(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    # Nodes with coordinates are fixed; the others are laid out between them.
    fixed = {index: np.array(place) for index, place in enumerate(known) if place is not None}
    placed = networkx.spring_layout(drawn, pos=fixed or None, fixed=list(fixed) or None, seed=0)
    return np.array([placed[node] for node in range(graph.nodes)])


def _apart(places: Array) -> Array:
    """Spreads nodes with the same position around it."""
    moved = places.copy()
    around = 0.018 * float(np.ptp(places, axis=0).max() or 1.0)
    _, place, count = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    for shared in np.flatnonzero(count > 1):
        members = np.flatnonzero(place.ravel() == shared)
        angle = 2 * np.pi * np.arange(len(members)) / len(members)
        moved[members] += around * np.stack((np.cos(angle), np.sin(angle)), axis=1)
    return moved


def _lines(graph: Graph, utilisation: Array | None) -> tuple[Array, Array, str]:
    """One line per pair of ends, with the worse value of both directions."""
    value = graph.cost / 1e6 if utilisation is None else utilisation
    worst: dict[tuple[int, int], float] = {}
    for source, target, each in zip(graph.source.tolist(), graph.target.tolist(), value.tolist(), strict=True):
        ends = (min(source, target), max(source, target))
        worst[ends] = max(worst.get(ends, 0.0), each)
    label = "link cost" if utilisation is None else "load / capacity"
    return np.array(list(worst), np.int64).reshape(-1, 2), np.array(list(worst.values())), label


def _widths(values: Array, utilisation: Array | None) -> Array:
    if utilisation is None:
        return np.full(len(values), 1.6)
    widths: Array = 1.0 + 4.0 * np.clip(values, 0.0, 1.0)
    return widths
