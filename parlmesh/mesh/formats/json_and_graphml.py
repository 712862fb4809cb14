"""JSON and GraphML graphs: networkx's node-link JSON, NetJSON NetworkGraph, and GraphML through networkx's reader."""

import io
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from parlmesh.errors import InvalidInput
from parlmesh.mesh.measured_mesh import Edge, Mesh, check_ids, mesh_of

from .attribute_names import as_number, facts_of, position_of

_NAMESPACE = "{http://graphml.graphdrawing.org/xmlns}"
# OLSR's scripts write "NULL" for a link that carries nothing.
_NOTHING = ("", "NULL")


def is_netjson(document: Any) -> bool:
    """Whether the document declares itself a NetworkGraph."""
    return isinstance(document, Mapping) and document.get("type") == "NetworkGraph"


def read_netjson(name: str, document: Mapping[str, Any]) -> Mesh:
    """Reads NetJSON. Costs are in the document's metric; a link goes both ways unless a reverse link exists.

    https://netjson.org/rfc.html#name-networkgraph
    """
    metric = str(document.get("metric") or "").lower()
    check_ids(name, (str(node["id"]) for node in document["nodes"]))
    nodes = {str(node["id"]): {**(node.get("properties") or {}), **node} for node in document["nodes"]}
    pairs = {(str(link["source"]), str(link["target"])) for link in document["links"]}
    edges = []
    for link in document["links"]:
        ends = str(link["source"]), str(link["target"])
        cost = link.get("cost")
        if cost is None or (isinstance(cost, str) and cost.strip().upper() in _NOTHING):
            continue
        if as_number(cost) is None:
            raise InvalidInput(
                f"{name}: the link {' – '.join(ends)} has the cost {reprlib.repr(cost)}; it must be a number,"
                " or NULL for an unusable link",
                reason="TOPOLOGY",
            )
        facts = facts_of({**(link.get("properties") or {}), "cost": cost})
        if "etx" in metric:
            facts.setdefault("etx", facts["cost"])
        edges.append(Edge(*ends, facts, directed=ends[::-1] in pairs, label=str(link.get("cost_text") or "")))
    for ends in sorted(pairs):
        for end in ends:
            nodes.setdefault(end, {})
    return _mesh(name, nodes, edges)


def read_node_link(name: str, document: Mapping[str, Any]) -> Mesh:
    """Reads the output of networkx's node_link_data, with `links` or `edges`."""
    listed = document.get("links", document.get("edges"))
    if listed is None or "nodes" not in document:
        raise KeyError("nodes and links")
    directed = bool(document.get("directed"))
    check_ids(name, (str(node["id"]) for node in document["nodes"]))
    nodes = {str(node["id"]): node for node in document["nodes"]}
    edges = [
        Edge(str(link["source"]), str(link["target"]), facts_of(link), directed, str(link.get("label") or ""))
        for link in listed
    ]
    return _mesh(name, nodes, edges)


def read_graphml(name: str, text: str) -> Mesh:
    """Reads GraphML with networkx; rejects a DTD, because entities can expand without limit."""
    import networkx

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InvalidInput(f"{name} has a DTD, which GraphML does not need and which is not allowed", reason="TOPOLOGY")
    # networkx merges nodes with the same id and creates nodes that only links name, so check first.
    tree = ElementTree.fromstring(text)  # noqa: S314  # it has no DTD
    links = tree.iter(f"{_NAMESPACE}edge")
    ends = (str(link.get(end)) for link in links for end in ("source", "target"))
    check_ids(name, (str(node.get("id")) for node in tree.iter(f"{_NAMESPACE}node")), ends)
    graph = networkx.read_graphml(io.BytesIO(text.encode()))
    # Prefer labels: ids are rarely meaningful.
    labels = {node: str(data.get("label") or "") for node, data in graph.nodes(data=True)}
    unique = len(set(labels.values())) == len(labels) and all(labels.values())
    names = labels if unique else {node: str(node) for node in graph}
    nodes = {names[node]: data for node, data in graph.nodes(data=True)}
    edges = [
        Edge(names[source], names[target], facts_of(data), graph.is_directed(), str(data.get("LinkLabel") or ""))
        for source, target, data in graph.edges(data=True)
    ]
    return _mesh(name, nodes, edges)


def _mesh(name: str, nodes: Mapping[str, Mapping[str, Any]], edges: Iterable[Edge]) -> Mesh:
    positions, kinds = {}, []
    for node, data in nodes.items():
        placed = position_of(data)
        if placed is not None:
            positions[node] = placed[0]
            kinds.append(placed[1])
    return mesh_of(name, nodes, list(edges), positions, geographic=bool(kinds) and all(kinds))
