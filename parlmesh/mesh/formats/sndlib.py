"""SNDlib networks, native and XML: nodes with positions, links with capacities, and demands between nodes.

A link's capacity is its installed capacity or, without one, its largest module. A routing cost of 0 means no cost.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from parlmesh.mesh.measured_mesh import Edge, Mesh, mesh_of

_TOKEN = re.compile(r"[()]|[^\s()]+")
_HEADER = "?SNDlib native format; type: network"
_NAMESPACE = "{http://sndlib.zib.de/network}"


@dataclass(frozen=True, slots=True)
class Network:
    """The contents of a file."""

    positions: dict[str, tuple[float, float]]
    nodes: list[str]
    edges: list[Edge]
    demands: list[tuple[str, str, float]]


def is_sndlib(text: str) -> bool:
    """Whether the text starts like an SNDlib file."""
    start = text.lstrip()[:4000]
    return start.startswith(_HEADER) or (start.startswith("<") and _NAMESPACE.strip("{}") in start)


def read_sndlib(name: str, text: str) -> Mesh:
    """The network without its demands; positions are longitude and latitude."""
    found = sndlib_network(text)
    return mesh_of(name, found.nodes, found.edges, found.positions, geographic=bool(found.positions))


def sndlib_network(text: str) -> Network:
    """Parses SNDlib; raises ValueError, KeyError, IndexError or ParseError for other text."""
    return _xml(text) if text.lstrip().startswith("<") else _native(text)


def _native(text: str) -> Network:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "?"))]
    tokens = iter(_TOKEN.findall("\n".join(lines)))
    found = Network({}, [], [], [])
    for section in tokens:
        _take(tokens, "(")
        for word in tokens:
            if word == ")":
                break
            if section == "NODES":
                place = _group(tokens)
                found.nodes.append(word)
                found.positions[word] = float(place[0]), float(place[1])
            elif section == "LINKS":
                ends, numbers, modules = _group(tokens), [_word(tokens) for _ in range(4)], _group(tokens)
                facts = _facts(float(numbers[0]), float(numbers[2]), [_capacity(each) for each in modules[::2]])
                found.edges.append(Edge(ends[0], ends[1], facts, label=word))
            elif section == "DEMANDS":
                ends, unit, value, _longest = _group(tokens), _word(tokens), _word(tokens), _word(tokens)
                found.demands.append((ends[0], ends[1], float(unit) * float(value)))
            elif section == "ADMISSIBLE_PATHS":
                _nested(tokens)
            elif section != "META":
                raise ValueError(f"unknown section {section!r}")
    return found


def _group(tokens: Iterator[str]) -> list[str]:
    """The words between two parentheses."""
    _take(tokens, "(")
    found: list[str] = []
    for word in tokens:
        if word == ")":
            return found
        found.append(word)
    raise ValueError("a parenthesis is never closed")


def _nested(tokens: Iterator[str]) -> None:
    _take(tokens, "(")
    depth = 1
    for word in tokens:
        depth += (word == "(") - (word == ")")
        if not depth:
            return


def _word(tokens: Iterator[str]) -> str:
    word = next(tokens, "")
    if not word:
        raise ValueError("the file ends too early")
    return word


def _take(tokens: Iterator[str], wanted: str) -> None:
    word = next(tokens, "")
    if word != wanted:
        raise ValueError(f"{wanted!r} is missing before {word!r}")


def _capacity(word: str) -> float:
    return 0.0 if word == "UNLIMITED" else float(word)


def _facts(installed: float, cost: float, modules: list[float]) -> dict[str, float]:
    capacity = installed if installed > 0 else max(modules, default=0.0)
    return {
        name: value for name, value in (("rate_mbps", capacity), ("cost", cost)) if value > 0 and value != float("inf")
    }


def _xml(text: str) -> Network:
    root = ElementTree.fromstring(text)  # noqa: S314  # the file size is bounded, and expat limits entity expansion
    found = Network({}, [], [], [])
    for node in root.iter(f"{_NAMESPACE}node"):
        name = node.attrib["id"]
        found.nodes.append(name)
        x, y = _text(node, "coordinates/x"), _text(node, "coordinates/y")
        if x and y:
            found.positions[name] = float(x), float(y)
    for link in root.iter(f"{_NAMESPACE}link"):
        modules = [float(each.text or 0) for each in link.iterfind(_path("additionalModules/addModule/capacity"))]
        installed = float(_text(link, "preInstalledModule/capacity") or 0)
        facts = _facts(installed, float(_text(link, "routingCost") or 0), modules)
        found.edges.append(Edge(_text(link, "source"), _text(link, "target"), facts, label=link.attrib.get("id", "")))
    for demand in root.iter(f"{_NAMESPACE}demand"):
        volume = float(_text(demand, "routingUnit") or 1) * float(_text(demand, "demandValue"))
        found.demands.append((_text(demand, "source"), _text(demand, "target"), volume))
    return found


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(_path(path)) or "").strip()


def _path(path: str) -> str:
    return "/".join(f"{_NAMESPACE}{part}" for part in path.split("/"))
