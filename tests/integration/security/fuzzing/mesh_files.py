"""Meshes and demands in every format that `parlmesh mesh` and the worlds read."""

import json
from pathlib import Path

from parlmesh.cli.applications.mesh import _health
from parlmesh.mesh.formats import read_mesh
from parlmesh.mesh.traffic import read_demands
from parlmesh.worlds.routing.topology_sources import read_topologies

from .file_damage import Format

SNDLIB = """?SNDlib native format; type: network; version: 1.0
# network tiny
META (
  unit = MBITPERSEC
)
NODES (
  Berlin ( 13.40 52.52 )
  Hamburg ( 9.99 53.55 )
  Ulm ( 9.98 48.40)
)
LINKS (
  L1 ( Berlin Hamburg ) 0.00 0.00 7.00 0.00 ( 155.00 1.0 622.00 2.0 )
  L2 ( Hamburg Ulm ) 40.00 0.00 3.00 0.00 ( UNLIMITED 0.0 )
)
DEMANDS (
  D1 ( Berlin Ulm ) 2 12.50 UNLIMITED
)
ADMISSIBLE_PATHS (
  D1 ( P_0 ( L1 L2 ) )
)
"""
SNDLIB_XML = """<?xml version="1.0"?>
<network xmlns="http://sndlib.zib.de/network" version="1.0"><networkStructure><nodes>
 <node id="Berlin"><coordinates><x>13.40</x><y>52.52</y></coordinates></node>
 <node id="Ulm"><coordinates><x>9.98</x><y>48.40</y></coordinates></node></nodes>
 <links><link id="L1"><source>Berlin</source><target>Ulm</target><routingCost>7.0</routingCost>
 <additionalModules><addModule><capacity>155.0</capacity><cost>1.0</cost></addModule></additionalModules></link></links>
 </networkStructure><demands><demand id="D1"><source>Berlin</source><target>Ulm</target>
 <demandValue>12.5</demandValue></demand></demands></network>
"""
GML = """graph [ directed 0
 node [ id 0 label "A" Longitude 1.0 Latitude 2.0 ] node [ id 1 label "B" ] node [ id 2 label "B" ]
 edge [ source 0 target 1 LinkSpeedRaw 155000000.0 LinkLabel "155 Mbps" ] edge [ source 1 target 2 weight 2.5 ] ]
"""
BATMAN = """{ "primary" : "fe:01" }
{ "secondary" : "fe:11", "of" : "fe:01" }
{ "router" : "fe:11", "neighbor" : "fe:02", "label" : "1.000" }
{ "router" : "fe:02", "neighbor" : "fe:01", "label" : "1.275" }
{ "router" : "fe:02", "gateway" : "aa:bb", "label" : "TT" }
"""
OLSR = (
    "Table: Topology\nDest. IP\tLast hop IP\tLQ\tNLQ\tCost\n"
    "10.0.0.2\t10.0.0.1\t1.000\t1.000\t1.000\n10.0.0.1\t10.0.0.2\t0.800\t1.000\t1.275\n"
    "10.0.0.3\t10.0.0.1\t0.0\t0.0\tINFINITE\n"
)
BABEL = {
    "a": "BABEL 1.0\nadd interface wlan0 up true ipv6 fe80::1 ipv4 10.0.0.1\n"
    "add neighbour 55 address fe80::2 if wlan0 reach ffff rxcost 256 txcost 256 rtt 12.0 cost 256\nok\n",
    "b": "add interface wlan0 up true ipv6 fe80::2\n"
    "add neighbour 66 address fe80::1 if wlan0 reach ffff rxcost 258 txcost 256 cost 512\n",
}


def _kept(file: Path, text: str) -> Format:
    file.write_text(text)
    return Format(file, read_mesh)


def mesh(folder: Path) -> Format:
    links = [{"source": "a", "target": "b", "cost": 1.0}, {"source": "b", "target": "c", "cost": 2.5}]
    document = {"type": "NetworkGraph", "nodes": [{"id": name} for name in "abc"], "links": links}
    return _kept(folder / "mesh.json", json.dumps(document))


def node_link(folder: Path) -> Format:
    document = {
        "directed": False,
        "multigraph": False,
        "graph": {},
        "nodes": [{"id": 1, "lat": 3.5, "lon": 7}, {"id": 2}],
        "links": [{"source": 1, "target": 2, "weight": 2.5, "latency_ms": 4}],
    }
    return _kept(folder / "mesh.json", json.dumps(document))


def graphml(folder: Path) -> Format:
    edge = '<edge source="a" target="b"><data key="d0">1.5</data></edge>'
    head = '<key id="d0" for="edge" attr.name="cost" attr.type="double"/>'
    graph = f'{head}<graph edgedefault="undirected"><node id="a"/><node id="b"/>{edge}</graph>'
    return _kept(folder / "mesh.graphml", f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{graph}</graphml>')


def gml(folder: Path) -> Format:
    return _kept(folder / "mesh.gml", GML)


def topology_of_a_world(folder: Path) -> Format:
    return gml(folder)._replace(read=read_topologies)


def sndlib(folder: Path) -> Format:
    return _kept(folder / "network.txt", SNDLIB)


def sndlib_xml(folder: Path) -> Format:
    return _kept(folder / "network.xml", SNDLIB_XML)


def batman_lines(folder: Path) -> Format:
    return _kept(folder / "vis.jsonl", BATMAN)


def batman_document(folder: Path) -> Format:
    rows = [{"router": "fe:11", "neighbor": "fe:02", "metric": "1.000"}]
    nodes = [{"primary": "fe:01", "secondary": ["fe:11"], "neighbors": rows}, {"primary": "fe:02", "neighbors": []}]
    return _kept(folder / "vis.json", json.dumps({"source_version": "2014.3.0", "algorithm": 4, "vis": nodes}))


def olsr_document(folder: Path) -> Format:
    costs = (("10.0.0.1", "10.0.0.2", 1024), ("10.0.0.2", "10.0.0.1", 2.0), ("10.0.0.1", "10.0.0.3", 1 << 22))
    rows = [{"lastHopIP": one, "destinationIP": other, "tcEdgeCost": cost} for one, other, cost in costs]
    return _kept(folder / "olsr.json", json.dumps({"topology": rows}))


def olsr_table(folder: Path) -> Format:
    return _kept(folder / "txtinfo", OLSR)


def babel_dumps(folder: Path) -> Format:
    """Two nodes' dumps, one of them damaged."""
    for name, text in BABEL.items():
        (folder / f"{name}.dump").write_text(text)
    return Format(folder / "a.dump", lambda file: read_mesh(file.parent))


def demands(folder: Path) -> Format:
    found = read_mesh(mesh(folder).file)
    rows = [{"source": "a", "target": "b", "volume": 3}, {"source": "b", "target": "c", "volume": 0.5}]
    (folder / "demands.json").write_text(json.dumps({"demands": rows}))
    return Format(folder / "demands.json", lambda file: read_demands(found, file))


def demands_of_sndlib(folder: Path) -> Format:
    found = read_mesh(sndlib(folder).file)
    (folder / "demands.txt").write_text(SNDLIB)
    return Format(folder / "demands.txt", lambda file: read_demands(found, file))


def health(folder: Path) -> Format:
    (folder / "health.json").write_text(json.dumps({"Berlin": "healthy", "Ulm": "failing"}))
    return Format(folder / "health.json", _health)
