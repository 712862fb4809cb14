"""Topologies from files and generated ones."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.worlds.routing.mesh_arrays import shortest
from parlmesh.worlds.routing.topology_sources import generated_topology, read_topologies

ZOO = Path(os.environ.get("PARLMESH_DATA", "data")) / "topology-zoo"

GRAPH = """graph [
  label "a [strange] name"
  node [ id 10 label "A" graphics [ x 1 y 2 ] ]
  node [ id 20 label "B" ]
  node [ id 30 label "C" ]
  node [ id 40 label "alone" ]
  edge [ source 10 target 20 LinkLabel "1 Gbit" ]
  edge [ source 20 target 10 ]
  edge [ source 20 target 30 ]
  edge [ source 30 target 30 ]
]
"""


def test_a_file_gives_its_largest_part_with_every_edge_once(tmp_path):
    file = tmp_path / "small.gml"
    file.write_text(GRAPH)
    (found,) = read_topologies(file)
    assert (found.name, found.nodes, found.edges) == ("small", 3, ((0, 1), (1, 2)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("graph [ node [ id 1 ] ]", "2 to 2000 connected nodes, got 1"),
        ("graph [ node [ id one ] ]", "not a GML graph"),
        ("graph [ edge [ source 1 target 2 ] ]", "not a GML graph"),
        ("nothing", "not a GML graph"),
    ],
)
def test_a_file_that_is_not_a_mesh_is_refused_by_name(tmp_path, text, said):
    file = tmp_path / "bad.gml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_topologies(file)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_topologies(tmp_path / "no.gml")
    with pytest.raises(InvalidInput, match=r"no \.gml file"):
        read_topologies(tmp_path)


@pytest.mark.skipif(not ZOO.is_dir(), reason="no folder topology-zoo in PARLMESH_DATA")
def test_every_topology_of_the_zoo_can_be_read():
    found = read_topologies(ZOO)
    assert len(found) == 138
    assert all(topology.nodes >= 2 and topology.edges for topology in found)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(0, 2**31))
def test_a_generated_mesh_is_connected_and_the_same_again(nodes, seed):
    found = generated_topology(nodes, seed)
    assert found == generated_topology(nodes, seed)
    pairs = np.array(found.edges)
    source, target = pairs.ravel(), pairs[:, ::-1].ravel()
    assert np.isfinite(shortest(nodes, source, target, np.ones(len(source)))).all()


def test_shortest_paths_equal_hand_computed_ones():
    source, target = np.array([0, 1, 0, 2]), np.array([1, 2, 2, 0])
    found = shortest(3, source, target, np.array([1.0, 1.0, 5.0, 1.0]))
    assert found.tolist() == [[0.0, 1.0, 2.0], [2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
