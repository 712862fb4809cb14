"""A mesh as read from files: nodes, their positions, and links with their measurements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parlmesh.errors import InvalidInput

from .mesh_limits import LONGEST_NAME, MOST_LINKS, MOST_NODES


@dataclass(frozen=True, slots=True)
class Link:
    """A link from one node to another, by node number. Unknown values are None."""

    source: int
    target: int
    cable: int
    """The unit that fails: both directions of an undirected link have the same number."""
    cost: float | None = None
    """The cost from the routing protocol or file, in any unit."""
    etx: float | None = None
    loss: float | None = None
    """Share of frames lost in this direction."""
    latency_ms: float | None = None
    rate_mbps: float | None = None
    """The link's rate: used for ETT, and as its capacity for demands."""
    tq: float | None = None
    """batman-adv's transmission quality, 0 to 255."""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Nodes are sorted by name, so that ties do not depend on a file's order."""

    name: str
    nodes: tuple[str, ...]
    links: tuple[Link, ...]
    positions: tuple[tuple[float, float] | None, ...] = ()
    """Longitude and latitude, or any planar coordinates."""
    geographic: bool = False

    @property
    def cables(self) -> int:
        """Number of cables."""
        return 1 + max((link.cable for link in self.links), default=-1)

    def number(self, node: str) -> int:
        """The number of a node, by name."""
        try:
            return self.nodes.index(node)
        except ValueError:
            raise InvalidInput(
                f"{self.name} has no node {node!r}; it has {len(self.nodes)}, {_some(self.nodes)}", reason="TOPOLOGY"
            ) from None

    def cable_name(self, cable: int) -> str:
        """The names of both ends, and the label if there is one."""
        link = next(link for link in self.links if link.cable == cable)
        shown = f" ({link.label})" if link.label else ""
        return f"{self.nodes[link.source]} – {self.nodes[link.target]}{shown}"


@dataclass(frozen=True, slots=True)
class Edge:
    """A link in a file, by node names; both ways unless `directed`."""

    source: str
    target: str
    facts: dict[str, float]
    directed: bool = False
    label: str = ""


def check_ids(name: str, ids: Iterable[str], ends: Iterable[str] = ()) -> None:
    """Checks that a file lists each node once, and that links join listed nodes."""
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise InvalidInput(f"{name} has the node {each!r} twice", reason="TOPOLOGY")
        seen.add(each)
    for end in ends:
        if end not in seen:
            raise _stray(name, end)


def mesh_of(
    name: str,
    nodes: Iterable[str],
    edges: Sequence[Edge],
    positions: dict[str, tuple[float, float]] | None = None,
    *,
    geographic: bool = False,
) -> Mesh:
    """Checks sizes and names, and drops self-loops. Two directed edges in opposite directions form one cable."""
    names = tuple(sorted(dict.fromkeys(nodes)))
    _check(name, names, len(edges))
    number = {node: index for index, node in enumerate(names)}
    links: list[Link] = []
    returning: dict[tuple[int, int], list[int]] = {}
    cables = 0
    for edge in edges:
        for end in (edge.source, edge.target):
            if end not in number:
                raise _stray(name, end)
        source, target = number[edge.source], number[edge.target]
        if source == target:
            continue
        waiting = returning.get((target, source)) if edge.directed else None
        cable = waiting.pop(0) if waiting else cables
        if cable == cables:
            cables += 1
            if edge.directed:
                returning.setdefault((source, target), []).append(cable)
        links.append(Link(source, target, cable, label=edge.label, **edge.facts))
        if not edge.directed:
            links.append(Link(target, source, cable, label=edge.label, **edge.facts))
    if len(links) > MOST_LINKS:
        raise InvalidInput(f"{name} has {len(links)} links; it must have at most {MOST_LINKS}", reason="TOPOLOGY")
    placed = tuple((positions or {}).get(node) for node in names)
    return Mesh(name, names, tuple(links), placed if any(placed) else (), geographic)


def _stray(name: str, end: str) -> InvalidInput:
    return InvalidInput(f"{name}: a link names the node {end!r:.200}, which does not exist", reason="TOPOLOGY")


def _check(name: str, nodes: Sequence[str], edges: int) -> None:
    if not 2 <= len(nodes) <= MOST_NODES:
        raise InvalidInput(f"{name} has {len(nodes)} nodes; it must have 2 to {MOST_NODES}", reason="TOPOLOGY")
    if edges > MOST_LINKS:
        raise InvalidInput(f"{name} has {edges} links; it must have at most {MOST_LINKS}", reason="TOPOLOGY")
    for node in nodes:
        if not node or len(node) > LONGEST_NAME or not node.isprintable():
            raise InvalidInput(
                f"{name}: the node {node[:40]!a} must have a printable name of 1 to {LONGEST_NAME} characters",
                reason="TOPOLOGY",
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
