"""The loop as a program uses it."""

import pytest

from parlmesh.client import PARLController
from parlmesh.errors import FailedPrecondition
from parlmesh.mapek import PARLMAPEKExecutor
from parlmesh.mapek.types import Health


@pytest.mark.e2e
async def test_a_cycle_over_named_nodes_reads_the_real_machine(mesh, controller):
    async with PARLMAPEKExecutor(controller) as executor:
        report = await executor.execute_mapek_cycle(["local-1-1", "local-1-2"])
    assert [node.node for node in report.nodes] == ["local-1-1", "local-1-2"]
    assert all(node.health is not Health.UNKNOWN and node.metrics["memory_percent"] > 0 for node in report.nodes)


async def test_an_executor_is_entered_first():
    with pytest.raises(FailedPrecondition, match="enter the executor first"):
        await PARLMAPEKExecutor(PARLController()).execute_mapek_cycle()
