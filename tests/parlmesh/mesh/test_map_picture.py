"""The map."""

import numpy as np
import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.map_picture import draw_map
from parlmesh.mesh.measured_mesh import Edge, mesh_of
from parlmesh.mesh.random_mesh import generated_mesh


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_map_names_its_nodes_and_counts_their_health(tmp_path, ending):
    mesh = generated_mesh(12)
    graph = Graph.of(mesh)
    used = np.linspace(0.0, 1.4, len(graph.source))
    file = draw_map(
        tmp_path / f"map.{ending}", mesh, graph, health={"n03": "failing"}, utilisation=used, highlight=[0, 1]
    )
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"unknown (11)" in content
        assert b"failing (1)" in content


def test_nodes_without_a_position_get_one(tmp_path):
    mesh = mesh_of("square", "abcd", [Edge("a", "b", {}), Edge("c", "d", {})], {"a": (0.0, 0.0)})
    assert draw_map(tmp_path / "map.png", mesh, Graph.of(mesh)).stat().st_size > 5000


def test_another_ending_and_another_health_are_refused(tmp_path):
    mesh = generated_mesh(5)
    with pytest.raises(InvalidInput, match=r"must end in \.png"):
        draw_map(tmp_path / "map.gif", mesh, Graph.of(mesh))
    with pytest.raises(InvalidInput, match="n0 is 'fine'"):
        draw_map(tmp_path / "map.png", mesh, Graph.of(mesh), health={"n0": "fine"})
