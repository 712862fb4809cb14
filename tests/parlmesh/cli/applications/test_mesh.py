"""`parlmesh mesh`, as its user sees it."""

import json

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.errors import FleetError, InvalidInput

MESH = {
    "nodes": [{"id": node} for node in ("a", "b", "c", "d", "alone")],
    "links": [
        {"source": "a", "target": "b", "weight": 1, "rate_mbps": 10},
        {"source": "b", "target": "d", "weight": 1, "rate_mbps": 10},
        {"source": "a", "target": "c", "weight": 2, "rate_mbps": 5},
        {"source": "c", "target": "d", "weight": 2, "rate_mbps": 5},
    ],
}


@pytest.fixture
def mesh(tmp_path):
    file = tmp_path / "diamond.json"
    file.write_text(json.dumps(MESH))
    return str(file)


def output(*arguments):
    result = CliRunner().invoke(app, ["mesh", *arguments], env={"COLUMNS": "200"})
    if isinstance(result.exception, FleetError):
        raise result.exception
    assert result.exception is None, result.output
    return result.stdout


def test_routes_are_printed_saved_and_shown_as_ip_lines(mesh, tmp_path):
    table, folder = tmp_path / "table.jsonl", tmp_path / "ip"
    arguments = ("--path", "a", "d", "--table", str(table), "--ip", str(folder), "--subnet", "10.77.0.0/24")
    text = output("optimize", mesh, *arguments)
    assert "12 pairs of nodes reach each other" in text
    assert "the mesh is in 2 parts, of 4, 1 nodes: alone" in text
    assert "a → b → d, 2" in text
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert rows[0]["routes"]["d"] == {"next_hop": "b", "cost": 2.0}
    lines = (folder / "00000-a.sh").read_text().splitlines()
    assert lines[1] == "ip route replace unreachable 10.77.0.2/32"


def test_failures_name_the_bottleneck_and_say_where_they_were_computed(mesh, tmp_path):
    demands = tmp_path / "demands.csv"
    demands.write_text("source,target,volume\na,d,8\n")
    found = json.loads(output("whatif", mesh, "--demands", str(demands), "--json"))
    assert (found["scenarios"], found["possible"], found["where"]) == (4, 4, "here")
    worst = found["consequences"][0]
    assert worst["fail"] == ["a – b"]
    assert (worst["bottleneck"], worst["utilisation"]) == ("a → c", 1.6)
    assert "160%" in output("whatif", mesh, "--demands", str(demands))
    paths = json.loads(output("whatif", mesh, "--paths", "a", "d", "--json"))["paths"]
    assert [path["nodes"] for path in paths] == [["a", "b", "d"], ["a", "c", "d"]]


def test_a_map_is_drawn_and_the_bottleneck_named(mesh, tmp_path):
    health = tmp_path / "health.json"
    health.write_text('{"b": "failing"}')
    picture = tmp_path / "map.svg"
    assert "the bottleneck is" in output("show", mesh, str(picture), "--health", str(health), "--gravity", "10")
    assert b"unknown (4)" in picture.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("optimize", "nowhere.gml"), "nowhere.gml cannot be read"),
        (("optimize", "generated:x"), "must be generated:NODES"),
        (("optimize", "generated:10", "--metric", "rssi"), "metric must be one of"),
        (("optimize", "generated:10", "--where", "moon"), "where must be one of"),
        (("optimize", "generated:10", "--path", "n0", "x"), "no node 'x'"),
        (("whatif", "generated:10", "--gravity", "1", "--demands", "x"), "give one of them"),
        (("show", "generated:10", "map.gif"), r"must end in \.png or \.svg"),
        (("try", "--fault", "flood"), "fault must be one of loss, latency, dead, disk, cpu, got 'flood'"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments, said):
    with pytest.raises(InvalidInput, match=said):
        output(*arguments)
