"""Output of routing daemons: batman-adv (alfred's batadv-vis), OLSRd (jsoninfo, txtinfo), Babel (babeld's dump)."""

import json
from collections.abc import Mapping
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.mesh.measured_mesh import Edge, Mesh, mesh_of

OLSR_ONE = 1024
"""OLSRd's integer cost of one ETX."""
OLSR_BROKEN = 1 << 22
BABEL_ONE = 256
BABEL_INFINITE = 65535


def read_batman_lines(name: str, text: str) -> Mesh:
    """`batadv-vis -f json`: one object per line. Clients (TT) are not nodes of the mesh."""
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    primary = {alias: row["of"] for row in rows if (alias := row.get("secondary")) and "of" in row}
    edges = [
        _batman(primary, row["router"], row["neighbor"], row["label"])
        for row in rows
        if "neighbor" in row and row.get("label") != "TT"
    ]
    known = [str(row["primary"]) for row in rows if "primary" in row]
    return mesh_of(name, [*known, *_ends(edges)], edges)


def read_batman_document(name: str, document: Mapping[str, Any]) -> Mesh:
    """`batadv-vis -f jsondoc`: one object with all nodes under `vis`."""
    primary = {str(alias): str(node["primary"]) for node in document["vis"] for alias in node.get("secondary", ())}
    edges = [
        _batman(primary, row["router"], row["neighbor"], row["metric"])
        for node in document["vis"]
        for row in node.get("neighbors", ())
    ]
    return mesh_of(name, [*(str(node["primary"]) for node in document["vis"]), *_ends(edges)], edges)


def _batman(primary: Mapping[str, str], router: Any, neighbour: Any, metric: Any) -> Edge:
    # The metric is 255 / TQ.
    value = float(metric)
    source, target = (primary.get(str(each), str(each)) for each in (router, neighbour))
    facts = {"etx": max(1.0, value), "tq": min(255.0, 255.0 / value) if value > 0 else 0.0}
    return Edge(source, target, facts, directed=True)


def read_olsr_document(name: str, document: Mapping[str, Any]) -> Mesh:
    """jsoninfo's topology. Integer costs are in 1/1024 ETX (OLSRd up to 0.8), others are ETX (0.9)."""
    edges = []
    for row in document["topology"]:
        cost = row["tcEdgeCost"]
        etx = cost / OLSR_ONE if isinstance(cost, int) else float(cost)
        if etx > 0 and etx < OLSR_BROKEN / OLSR_ONE:
            edges.append(Edge(str(row["lastHopIP"]), str(row["destinationIP"]), {"etx": max(1.0, etx)}, directed=True))
    ends = [str(row[end]) for row in document["topology"] for end in ("lastHopIP", "destinationIP")]
    return mesh_of(name, ends, edges)


def read_olsr_text(name: str, text: str) -> Mesh:
    """txtinfo's topology table, with columns found by title."""
    lines = [line.strip("\r") for line in text.splitlines()]
    start = lines.index("Table: Topology")
    titles = [title.strip().lower() for title in lines[start + 1].split("\t")]
    target, source, cost = (titles.index(title) for title in ("dest. ip", "last hop ip", "cost"))
    edges, ends = [], []
    for line in lines[start + 2 :]:
        if not line.strip():
            break
        cells = line.split("\t")
        ends += [cells[source], cells[target]]
        if cells[cost] != "INFINITE":
            edges.append(Edge(cells[source], cells[target], {"etx": max(1.0, float(cells[cost]))}, directed=True))
    return mesh_of(name, ends, edges)


def is_babel(text: str) -> bool:
    """Whether it is a babeld dump; one without neighbours still has a greeting or interfaces."""
    return any(line.startswith(("BABEL ", "add interface ", "add neighbour ")) for line in text.splitlines())


def read_babel(name: str, dumps: Mapping[str, str]) -> Mesh:
    """Reads nodes' dumps, by node name. A neighbour's address belongs to the node that lists it as its own."""
    owner: dict[str, str] = {}
    for node, text in dumps.items():
        for words in _babel_lines(text, "interface"):
            for family in ("ipv6", "ipv4"):
                if family in words:
                    owner[words[words.index(family) + 1]] = node
    edges, unknown = [], set()
    for node, text in dumps.items():
        for words in _babel_lines(text, "neighbour"):
            address, cost = words[words.index("address") + 1], int(words[words.index("cost") + 1])
            if address not in owner:
                unknown.add(address)
            elif cost < BABEL_INFINITE:
                facts = {"cost": cost / BABEL_ONE}
                if "rtt" in words:
                    facts["latency_ms"] = float(words[words.index("rtt") + 1]) / 2
                edges.append(Edge(node, owner[address], facts, directed=True))
    if unknown and not edges:
        raise InvalidInput(
            f"{name}: no dump lists the neighbours' addresses ({', '.join(sorted(unknown)[:3])} …) as its own; provide "
            "the dumps of all nodes, one file each",
            reason="TOPOLOGY",
        )
    return mesh_of(name, [*dumps, *sorted(unknown)], edges)


def _babel_lines(text: str, what: str) -> list[list[str]]:
    return [words for line in text.splitlines() if (words := line.split())[:2] == ["add", what]]


def _ends(edges: list[Edge]) -> list[str]:
    return [end for edge in edges for end in (edge.source, edge.target)]
