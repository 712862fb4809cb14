"""Every format, each with a small file as its program writes it."""

import json
from pathlib import Path

import networkx
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mesh.formats import read_mesh
from parlmesh.mesh.traffic import read_demands

BATMAN_LINES = """{ "primary" : "fe:01" }
{ "secondary" : "fe:11", "of" : "fe:01" }
{ "router" : "fe:11", "neighbor" : "fe:02", "label" : "1.000" }
{ "router" : "fe:02", "neighbor" : "fe:01", "label" : "1.275" }
{ "router" : "fe:02", "gateway" : "aa:bb", "label" : "TT" }
"""
BATMAN_DOCUMENT = {
    "source_version": "2014.3.0",
    "algorithm": 4,
    "vis": [
        {
            "primary": "fe:01",
            "secondary": ["fe:11"],
            "neighbors": [{"router": "fe:11", "neighbor": "fe:02", "metric": "1.000"}],
        },
        {"primary": "fe:02", "neighbors": [{"router": "fe:02", "neighbor": "fe:01", "metric": "1.275"}], "clients": []},
    ],
}
OLSR_TEXT = (
    "Table: Topology\nDest. IP\tLast hop IP\tLQ\tNLQ\tCost\n"
    "10.0.0.2\t10.0.0.1\t1.000\t1.000\t1.000\n10.0.0.1\t10.0.0.2\t0.800\t1.000\t1.275\n10.0.0.3\t10.0.0.1\t0.0\t0.0\tINFINITE\n"
)
NODE = {
    "a": "BABEL 1.0\nadd interface wlan0 up true ipv6 fe80::1 ipv4 10.0.0.1\n"
    "add neighbour 55 address fe80::2 if wlan0 reach ffff ureach 0000 rxcost 256 txcost 256 rtt 12.0 cost 256\nok\n",
    "b": "add interface wlan0 up true ipv6 fe80::2\n"
    "add neighbour 66 address fe80::1 if wlan0 reach ffff ureach 0000 rxcost 258 txcost 256 cost 512\n"
    "add neighbour 67 address fe80::9 if wlan0 reach 0000 ureach 0000 rxcost 65535 txcost 65535 cost 65535\n",
}


def read(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    return read_mesh(file)


def links(mesh, fact):
    return {(mesh.nodes[link.source], mesh.nodes[link.target]): getattr(link, fact) for link in mesh.links}


@pytest.mark.parametrize("text", [BATMAN_LINES, json.dumps(BATMAN_DOCUMENT)])
def test_batman_adv_gives_255_by_tq_and_clients_are_not_nodes(tmp_path, text):
    mesh = read(tmp_path, "vis.json", text)
    assert links(mesh, "etx") == {("fe:01", "fe:02"): 1.0, ("fe:02", "fe:01"): 1.275}
    assert links(mesh, "tq")["fe:02", "fe:01"] == pytest.approx(200)
    assert (mesh.nodes, mesh.cables) == (("fe:01", "fe:02"), 1)


@pytest.mark.parametrize(("good", "bad", "broken"), [(1024, 2048, 1 << 22), (1.0, 2.0, 4096.0)])
def test_olsrd_gives_1024ths_as_integers_and_etx_otherwise(tmp_path, good, bad, broken):
    rows = [("10.0.0.1", "10.0.0.2", good), ("10.0.0.2", "10.0.0.1", bad), ("10.0.0.1", "10.0.0.3", broken)]
    topology = [{"lastHopIP": one, "destinationIP": other, "tcEdgeCost": cost} for one, other, cost in rows]
    mesh = read(tmp_path, "olsr.json", json.dumps({"topology": topology}))
    assert links(mesh, "etx") == {("10.0.0.1", "10.0.0.2"): 1.0, ("10.0.0.2", "10.0.0.1"): 2.0}
    assert mesh.nodes[-1] == "10.0.0.3"


def test_olsrd_also_gives_a_table(tmp_path):
    mesh = read(tmp_path, "txtinfo", OLSR_TEXT)
    assert links(mesh, "etx") == {("10.0.0.1", "10.0.0.2"): 1.0, ("10.0.0.2", "10.0.0.1"): 1.275}
    assert len(mesh.nodes) == 3


def test_babeld_lists_its_neighbours_and_a_folder_has_all_nodes(tmp_path):
    folder = tmp_path / "babel"
    folder.mkdir()
    for name, text in NODE.items():
        (folder / f"{name}.dump").write_text(text)
    mesh = read_mesh(folder)
    assert links(mesh, "cost") == {("a", "b"): 1.0, ("b", "a"): 2.0}
    assert links(mesh, "latency_ms")["a", "b"] == 6.0
    assert mesh.nodes == ("a", "b", "fe80::9")
    (folder / "notes.txt").write_text("not a dump\n")
    with pytest.raises(InvalidInput, match=r"notes\.txt is not a babeld dump"):
        read_mesh(folder)
    with pytest.raises(InvalidInput, match="dumps of all nodes"):
        read(tmp_path, "one", NODE["a"])


def test_netjson_costs_are_in_the_metric_that_it_names(tmp_path):
    document = {
        "type": "NetworkGraph",
        "protocol": "OLSR",
        "version": "0.6.6",
        "metric": "ETX",
        "nodes": [{"id": "10.0.0.1", "properties": {"lat": 1.0, "lng": 2.0}}, {"id": "10.0.0.2"}, {"id": "10.0.0.3"}],
        "links": [
            {"source": "10.0.0.1", "target": "10.0.0.2", "cost": 1.5, "cost_text": "ETX 1.5"},
            {"source": "10.0.0.2", "target": "10.0.0.3", "cost": 1.0},
            {"source": "10.0.0.3", "target": "10.0.0.2", "cost": 2.0},
            {"source": "10.0.0.1", "target": "10.0.0.3", "cost": "NULL"},
        ],
    }
    mesh = read(tmp_path, "net.json", json.dumps(document))
    found = links(mesh, "etx")
    assert found["10.0.0.2", "10.0.0.1"] == 1.5
    assert (found["10.0.0.2", "10.0.0.3"], found["10.0.0.3", "10.0.0.2"]) == (1.0, 2.0)
    assert len(found) == 4
    assert mesh.positions[0] == (2.0, 1.0)


@pytest.mark.parametrize("edges", ["links", "edges"])
def test_node_link_json_is_that_of_networkx(tmp_path, edges):
    graph = networkx.Graph()
    graph.add_edge(1, 2, weight=2.5, latency_ms=4)
    document = networkx.node_link_data(graph, edges=edges)
    mesh = read(tmp_path, "graph.json", json.dumps(document))
    assert links(mesh, "cost") == {("1", "2"): 2.5, ("2", "1"): 2.5}
    assert links(mesh, "latency_ms")["1", "2"] == 4.0


def test_graphml_is_that_of_networkx(tmp_path):
    graph = networkx.MultiDiGraph()
    graph.add_node("n1", label="one", Longitude=1.0, Latitude=2.0)
    graph.add_node("n2", label="two")
    graph.add_edge("n1", "n2", weight=2.5)
    graph.add_edge("n1", "n2", weight=3.5)
    text = "\n".join(networkx.generate_graphml(graph))
    mesh = read(tmp_path, "graph.graphml", text)
    assert mesh.nodes == ("one", "two")
    assert [link.cost for link in mesh.links] == [2.5, 3.5]
    assert mesh.cables == 2
    with pytest.raises(InvalidInput, match="DTD"):
        read(tmp_path, "evil.graphml", '<!DOCTYPE x [<!ENTITY a "b">]>' + text)


def test_gml_keeps_parallel_links_labels_and_places(tmp_path):
    text = """graph [ node [ id 0 label "A" Longitude 1.0 Latitude 2.0 ] node [ id 1 label "B" ] node [ id 2 label "B" ]
      edge [ source 0 target 1 LinkSpeedRaw 155000000.0 LinkLabel "155 Mbps" ] edge [ source 0 target 1 ]
      edge [ source 1 target 1 ] ]"""
    mesh = read(tmp_path, "zoo.gml", text)
    assert mesh.nodes == ("A", "B#1", "B#2")
    assert (mesh.cables, mesh.links[0].rate_mbps, mesh.links[0].label) == (2, 155.0, "155 Mbps")
    assert mesh.positions[0] == (1.0, 2.0)


NATIVE = """?SNDlib native format; type: network; version: 1.0
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
  D2 ( Ulm Hamburg ) 1 3.00 5
)
ADMISSIBLE_PATHS (
  D1 (
    P_0 ( L1 L2 )
  )
)
"""
XML = """<?xml version="1.0"?>
<network xmlns="http://sndlib.zib.de/network" version="1.0">
 <networkStructure>
  <nodes coordinatesType="geographical">
   <node id="Berlin"><coordinates><x>13.40</x><y>52.52</y></coordinates></node>
   <node id="Hamburg"><coordinates><x>9.99</x><y>53.55</y></coordinates></node>
   <node id="Ulm"><coordinates><x>9.98</x><y>48.40</y></coordinates></node>
  </nodes>
  <links>
   <link id="L1"><source>Berlin</source><target>Hamburg</target><routingCost>7.0</routingCost>
    <additionalModules><addModule><capacity>155.0</capacity><cost>1.0</cost></addModule>
     <addModule><capacity>622.0</capacity><cost>2.0</cost></addModule></additionalModules></link>
   <link id="L2"><source>Hamburg</source><target>Ulm</target><routingCost>3.0</routingCost>
    <preInstalledModule><capacity>40.0</capacity><cost>0.0</cost></preInstalledModule></link>
  </links>
 </networkStructure>
 <demands>
  <demand id="D1"><source>Berlin</source><target>Ulm</target><routingUnit>2</routingUnit>
   <demandValue>12.5</demandValue></demand>
  <demand id="D2"><source>Ulm</source><target>Hamburg</target><demandValue>3.0</demandValue></demand>
 </demands>
</network>
"""


@pytest.mark.parametrize("text", [NATIVE, XML])
def test_sndlib_has_places_capacities_costs_and_demands(tmp_path, text):
    mesh = read(tmp_path, "tiny.txt", text)
    assert mesh.nodes == ("Berlin", "Hamburg", "Ulm")
    assert (mesh.geographic, mesh.positions[0]) == (True, (13.40, 52.52))
    links = [(link.rate_mbps, link.cost, link.label) for link in mesh.links[::2]]
    assert links == [(622.0, 7.0, "L1"), (40.0, 3.0, "L2")]
    demands = read_demands(mesh, tmp_path / "tiny.txt")
    assert list(zip(demands.source, demands.target, demands.volume, strict=True)) == [(0, 2, 25.0), (2, 1, 3.0)]


@pytest.mark.parametrize("cut", ["LINKS (\n  L1 ( A", "NODES (\n  A ( x y )\n)", "ROADS (\n a\n)", "NODES A"])
def test_a_broken_sndlib_file_gives_one_sentence(tmp_path, cut):
    with pytest.raises(InvalidInput, match="SNDlib"):
        read(tmp_path, "broken.txt", f"?SNDlib native format; type: network; version: 1.0\n{cut}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "is not GML"),
        ("{", "is not GML"),
        ('{"nodes": []}', "is not GML"),
        ("[1]", "nodes"),
        ("<graphml", "is not GML"),
        ("<graphml></graphml>", "networkx can read|is not GML"),
        ('{"type": "NetworkGraph", "nodes": [], "links": []}', "has 0 nodes; it must have 2 to 10000"),
        ('{"vis": 3}', "is not GML"),
        ('{"topology": [{"lastHopIP": 1}]}', "is not GML"),
        ("Table: Topology\nx\n", "is not GML"),
    ],
)
def test_a_file_that_is_not_a_mesh_gives_one_sentence(tmp_path, text, said):
    with pytest.raises(InvalidInput, match=said):
        read(tmp_path, "bad", text)


def test_a_missing_file_gives_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_mesh(tmp_path / "none")


GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="w" for="edge" attr.name="weight" '
    'attr.type="double"/><graph edgedefault="undirected">{}</graph></graphml>'
)


def graphml(nodes, *edges):
    listed = "".join(f'<node id="{node}"/>' for node in nodes)
    joined = (f'<edge source="{a}" target="{b}"><data key="w">{weight}</data></edge>' for a, b, weight in edges)
    return GRAPHML.format(listed + "".join(joined))


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("m.graphml", graphml("aba", ("a", "b", 1)), "m has the node 'a' twice"),
        ("m.gml", "graph [ node [ id 0 ] node [ id 0 ] edge [ source 0 target 0 ] ]", "m has the node '0' twice"),
        ("m.json", '{"nodes": [{"id": "a"}, {"id": "b"}, {"id": "b"}], "links": []}', "m has the node 'b' twice"),
        (
            "m.json",
            '{"type": "NetworkGraph", "nodes": [{"id": "a"}, {"id": "a"}], "links": []}',
            "m has the node 'a' twice",
        ),
        ("m.graphml", graphml("ab", ("a", "c", 1)), "m: a link names the node 'c', which does not exist"),
        (
            "m.json",
            '{"type": "NetworkGraph", "nodes": [], "links": [{"source": "a", "target": "b", "cost": "dear"}]}',
            "m: the link a – b has the cost 'dear'; it must be a number, or NULL for an unusable link",
        ),
        ("m.json", '{"nodes": ' + "[" * 100_000, "m.json is not GML, GraphML, .*: RecursionError"),
    ],
)
def test_a_file_that_says_a_thing_twice_or_leaves_it_open_is_refused(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
        read_mesh(tmp_path / name)


def test_a_file_without_an_end_is_not_read_to_it():
    with pytest.raises(InvalidInput, match="/dev/zero is larger than "):
        read_mesh(Path("/dev/zero"))


def test_a_cost_that_is_very_long_is_refused_in_a_sentence(tmp_path):
    link = {"source": "a", "target": "b", "cost": {"x": ["9" * 5000] * 50}}
    (tmp_path / "m.json").write_text(json.dumps({"type": "NetworkGraph", "nodes": [], "links": [link]}))
    with pytest.raises(InvalidInput, match="it must be a number") as refused:
        read_mesh(tmp_path / "m.json")
    assert len(str(refused.value)) < 1000
