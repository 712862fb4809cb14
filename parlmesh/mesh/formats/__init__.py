"""Reads meshes from files; the content determines the format."""

import io
import json
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from parlmesh.errors import FleetError, InvalidInput
from parlmesh.mesh.measured_mesh import Mesh
from parlmesh.mesh.mesh_limits import LARGEST_FILE_BYTES, MOST_DUMPS

from .gml import read_gml
from .json_and_graphml import is_netjson, read_graphml, read_netjson, read_node_link
from .routing_daemons import (
    is_babel,
    read_babel,
    read_batman_document,
    read_batman_lines,
    read_olsr_document,
    read_olsr_text,
)
from .sndlib import is_sndlib, read_sndlib

__all__ = ["read_mesh", "read_text"]


def read_mesh(place: Path) -> Mesh:
    """Reads a file of any known format, or a folder with babeld dumps, one per node."""
    if place.is_dir():
        files = sorted(file for file in place.iterdir() if file.is_file())[: MOST_DUMPS + 1]
        if not 1 <= len(files) <= MOST_DUMPS:
            raise InvalidInput(f"{place} must contain 1 to {MOST_DUMPS} babeld dumps", reason="TOPOLOGY")
        return _told(str(place), lambda: read_babel(place.name, {file.stem: _dump(file) for file in files}))
    text = read_text(place)
    return _told(str(place), lambda: _mesh(place.stem, text))


def read_text(file: Path) -> str:
    """Reads a text file of bounded size; raises InvalidInput when it cannot be read."""
    try:
        # Read, do not stat: a device has no size and no end.
        with file.open("rb") as opened:
            data = opened.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", reason="TOPOLOGY") from error
    if len(data) > LARGEST_FILE_BYTES:
        raise InvalidInput(f"{file} is larger than {LARGEST_FILE_BYTES} bytes", reason="TOPOLOGY")
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors="replace").read()


def _dump(file: Path) -> str:
    text = read_text(file)
    if not is_babel(text):
        raise InvalidInput(f"{file} is not a babeld dump; a folder must contain nothing else", reason="TOPOLOGY")
    return text


def _mesh(name: str, text: str) -> Mesh:
    start = text.lstrip()
    if is_sndlib(text):
        return read_sndlib(name, text)
    if start.startswith("<"):
        return read_graphml(name, text)
    if start.startswith("{"):
        try:
            return _document(name, json.loads(text))
        except json.JSONDecodeError:
            return read_batman_lines(name, text)
    if "Table: Topology" in text:
        return read_olsr_text(name, text)
    if "\nadd neighbour " in f"\n{text}":
        return read_babel(name, {name: text})
    return read_gml(name, text)


def _document(name: str, document: Any) -> Mesh:
    if is_netjson(document):
        return read_netjson(name, document)
    if "vis" in document:
        return read_batman_document(name, document)
    if "topology" in document:
        return read_olsr_document(name, document)
    if "router" in document or "primary" in document:
        return read_batman_lines(name, json.dumps(document))
    return read_node_link(name, document)


def _told(file: str, read: Any) -> Mesh:
    """Turns parsing errors into one InvalidInput sentence."""
    try:
        mesh: Mesh = read()
    except FleetError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, ParseError) as error:
        raise InvalidInput(
            f"{file} is not GML, GraphML, SNDlib, node-link JSON, NetJSON NetworkGraph, or a dump of batadv-vis, olsrd "
            f"or babeld: {type(error).__name__} {str(error)!a:.200}",
            reason="TOPOLOGY",
        ) from error
    except Exception as error:
        # networkx raises its own errors, which cannot be named without importing it.
        if type(error).__module__.partition(".")[0] != "networkx":
            raise
        raise InvalidInput(
            f"{file} is not GraphML that networkx can read: {str(error)!a:.200}", reason="TOPOLOGY"
        ) from error
    return mesh
