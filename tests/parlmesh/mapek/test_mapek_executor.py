"""The loop as a program uses it."""

import pytest

from parlmesh.client import PARLController
from parlmesh.errors import FailedPrecondition
from parlmesh.mapek import PARLMAPEKExecutor
from parlmesh.mapek.types import Health


@pytest.mark.e2e
async def test_a_cycle_over_named_nodes_reads_the_real_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with PARLController() as controller:
        await controller.initialize(2, actor={"plugins": ["mapek"], "virtual_nodes": 1}, processes=1)
        async with PARLMAPEKExecutor(controller) as executor:
            report = await executor.execute_mapek_cycle(["local-0-0", "local-0-1"])
    assert [node.node for node in report.nodes] == ["local-0-0", "local-0-1"]
    assert all(node.health is not Health.UNKNOWN and node.metrics["memory_percent"] > 0 for node in report.nodes)


async def test_an_executor_is_entered_first():
    with pytest.raises(FailedPrecondition, match="enter the executor first"):
        await PARLMAPEKExecutor(PARLController()).execute_mapek_cycle()
