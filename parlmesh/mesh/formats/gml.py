"""GML: blocks `node [ id 3 … ]` and `edge [ source 3 target 4 … ]` in a graph. Allows parallel links."""

import re
from collections import Counter
from dataclasses import dataclass

from parlmesh.mesh.measured_mesh import Edge, Mesh, check_ids, mesh_of

from .attribute_names import facts_of, position_of

_TOKEN = re.compile(r'"[^"]*"|\[|\]|[^\s\[\]"]+')


@dataclass(frozen=True, slots=True)
class Blocks:
    """Node and edge attributes as written, without quotes; nested blocks are ignored."""

    nodes: list[dict[str, str]]
    edges: list[dict[str, str]]
    directed: bool


def gml_blocks(text: str) -> Blocks:
    """Parses GML; raises ValueError, KeyError or IndexError for other text."""
    tokens = _TOKEN.findall(text)
    found: dict[str, list[dict[str, str]]] = {"node": [], "edge": []}
    whole: dict[str, str] = {}
    depth, position = 0, 0
    block: dict[str, str] = {}
    kind = ""
    while position < len(tokens):
        word = tokens[position]
        if word == "]":
            depth -= 1
            if depth == 1 and kind in found:
                found[kind].append(block)
            position += 1
        elif tokens[position + 1] == "[":
            depth += 1
            if depth == 2:
                kind, block = word, {}
            position += 2
        else:
            if depth:
                (block if depth == 2 else whole if depth == 1 else {}).setdefault(word, tokens[position + 1].strip('"'))
            position += 2
    for block in found["node"]:
        int(block["id"])
    for block in found["edge"]:
        int(block["source"]), int(block["target"])
    return Blocks(found["node"], found["edge"], whole.get("directed") == "1")


def read_gml(name: str, text: str) -> Mesh:
    """Names nodes by label, and adds the id to labels that are missing or not unique."""
    blocks = gml_blocks(text)
    check_ids(name, (node["id"] for node in blocks.nodes))
    labels = Counter(node.get("label", "") for node in blocks.nodes)
    names = {}
    for node in blocks.nodes:
        label, number = node.get("label", "").strip(), node["id"]
        names[number] = label if label and labels[node["label"]] == 1 else f"{label}#{number}".lstrip("#") or number
    positions, kinds = {}, []
    for node in blocks.nodes:
        placed = position_of(node)
        if placed is not None:
            positions[names[node["id"]]] = placed[0]
            kinds.append(placed[1])
    edges = [
        Edge(names[edge["source"]], names[edge["target"]], facts_of(edge), blocks.directed, edge.get("LinkLabel", ""))
        for edge in blocks.edges
    ]
    return mesh_of(name, names.values(), edges, positions, geographic=bool(kinds) and all(kinds))
