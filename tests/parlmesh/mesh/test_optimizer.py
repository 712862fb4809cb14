"""Work in pieces: the same answers here and on a fleet."""

import numpy as np
import pytest

from parlmesh.client import PARLController
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mesh import PARLMeshOptimizer
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.path_distances import all_distances
from parlmesh.mesh.random_mesh import generated_mesh

MESH = generated_mesh(60, seed=1)


async def test_a_fleet_answers_what_one_process_does():
    here = PARLMeshOptimizer()
    seen = []
    async with PARLController() as controller:
        await controller.initialize(2, processes=1, actor={"plugins": ["parlmesh.mesh.plugin:plugin"]})
        fleet = PARLMeshOptimizer(controller)
        table = await fleet.optimize_routes_parallel(
            MESH, where="fleet", most_members=15, progress=lambda *done: seen.append(done)
        )
        assert table.made["where"] == "fleet"
        assert table.made["segments"] >= 4
        assert table.made["wrong_answers"] == []
        assert seen[-1] == (60, 60)
        alone = await here.optimize_routes_parallel(MESH)
        assert alone.made["where"] == "here"
        assert np.array_equal(table.distance, alone.distance)
        assert np.array_equal(table.next_hop, alone.next_hop)
        told = await fleet.what_if_parallel(MESH, where="fleet")
        same = await here.what_if_parallel(MESH)
        assert told.made["tasks"] == 64
        for name, column in same.consequences.tensors().items():
            assert np.array_equal(getattr(told.consequences, name), column)
        pairs = [(MESH.nodes[0], node) for node in MESH.nodes[1:20]]
        assert (await fleet.disjoint_paths_parallel(MESH, pairs, where="fleet"))[0] == (
            await here.disjoint_paths_parallel(MESH, pairs)
        )[0]


class Liar:
    """A controller whose actors give arbitrary answers."""

    def __init__(self, answer):
        self.answer = answer

    async def as_completed(self, requests):
        for index, request in enumerate(requests):
            yield self.answer(index, request)


class Told:
    actor_id = "liar"
    value = None

    def __init__(self, index, tensors):
        self.index, self.tensors = index, tensors

    def unwrap(self):
        return {}


async def test_an_actor_that_lies_about_distances_costs_a_computation_and_never_the_table():
    def answer(index, request):
        graph = Graph.from_tensors(request.parameters["nodes"], dict(request.tensors))
        inside = all_distances(graph)
        if index == 1:
            inside[inside > 0] -= 1
        return Told(index, {"inside": inside})

    liars = PARLMeshOptimizer(Liar(answer))  # type: ignore[arg-type]
    table = await liars.optimize_routes_parallel(MESH, where="fleet", most_members=15)
    assert len(table.made["wrong_answers"]) == 1
    assert "actor liar" in table.made["wrong_answers"][0]
    assert np.array_equal(table.distance, all_distances(Graph.of(MESH)))


async def test_invalid_requests_are_refused_before_anything_is_computed():
    here = PARLMeshOptimizer()
    with pytest.raises(FailedPrecondition, match="there is no fleet"):
        await here.optimize_routes_parallel(MESH, where="fleet")
    with pytest.raises(InvalidInput, match="cables or nodes, got 'links'"):
        await here.what_if_parallel(MESH, fail="links")
    with pytest.raises(InvalidInput, match="no node 'x'"):
        await here.disjoint_paths_parallel(MESH, [("x", "y")])
    with pytest.raises(InvalidInput, match="where must be"):
        await here.optimize_routes_parallel(MESH, where="moon")
