"""Checks many nodes at once."""

import pytest

from parlmesh.client import PARLController
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mesh import PARLMeshOptimizer
from parlmesh.mesh.anomalies import Node


async def test_the_sick_node_is_found_and_a_node_that_nobody_could_look_at_is_unknown(tmp_path, monkeypatch):
    settings = tmp_path / "node.yaml"
    settings.write_text(f"state: {tmp_path / 'state'}\n")
    monkeypatch.setenv("PARLMESH_MAPEK_NODE", str(settings))
    async with PARLController() as controller:
        await controller.initialize(
            4, processes=1, actor={"plugins": ["parlmesh.mapek.plugin:plugin"], "virtual_nodes": 1}
        )
        optimizer = PARLMeshOptimizer(controller)
        here = sorted(actor.node_id for actor in await controller.list_actors())
        assert len(set(here)) == 4
        well = {"cpu_percent": 5.0, "memory_percent": 20.0}
        nodes: list[Node | str] = [
            Node(here[0], well),
            Node(here[1], {**well, "cpu_percent": 99.0}),
            "nowhere",
            here[2],
        ]
        found = await optimizer.detect_anomalies_parallel(nodes)
        assert (here[1], "cpu_percent", 99.0) in [(each.node, each.metric, each.value) for each in found]
        assert here[0] not in {each.node for each in found}
        assert found.unknown == {"nowhere": "the node has no ready actor, and no metrics were given"}
        with pytest.raises(InvalidInput, match="twice"):
            await optimizer.detect_anomalies_parallel(["a", "a"])


async def test_without_a_fleet_nobody_looks():
    with pytest.raises(FailedPrecondition, match="there is no fleet"):
        await PARLMeshOptimizer().detect_anomalies_parallel(["a"])
