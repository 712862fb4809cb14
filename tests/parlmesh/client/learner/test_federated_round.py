"""Rounds by the orchestrator on a real learner, with nodes that stand in one actor process."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from parlmesh.client import PARLController, PARLFederatedOrchestrator
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.processes import ChildSpec, Supervisor, service_command, write_settings

QUIET = {"metrics": {"port": None}}


async def test_a_round_needs_nodes_and_a_learner():
    orchestrator = PARLFederatedOrchestrator(PARLController())
    with pytest.raises(InvalidInput, match="at least one node"):
        await orchestrator.parallel_training_round([])
    with pytest.raises(FailedPrecondition, match="needs a learner"):
        await orchestrator.parallel_training_round(["a"])


def _child(supervisor: Supervisor, folder: Path, name: str, settings: Mapping[str, object]) -> None:
    file = folder / f"{name}.yaml"
    write_settings(file, {**QUIET, **settings})
    supervisor.start(ChildSpec(name, lambda _: service_command(name, file), folder / f"{name}.log"))


@pytest.mark.e2e
async def test_every_named_node_trains_and_no_other(tmp_path):
    nodes = ["n-0#0", "n-2#0"]
    configuration = {
        "task": "synthetic",
        "selection": {"virtual_nodes": 1},
        "evaluation": {"interval_rounds": 0},
    }
    async with Supervisor(note=lambda text: None, grace_seconds=2.0) as supervisor:
        _child(supervisor, tmp_path, "scheduler", {"listen": {"port": 0}, "store": {"kind": "memory"}})
        scheduler = f"127.0.0.1:{await supervisor.serving('scheduler', deadline_seconds=60)}"
        of_learner = {
            "listen": {"port": 0},
            "mode": "federation",
            "scheduler": scheduler,
            "run_dir": str(tmp_path / "run"),
        }
        _child(supervisor, tmp_path, "learner", of_learner)
        learner = f"127.0.0.1:{await supervisor.serving('learner', deadline_seconds=60)}"
        of_actors = {"actor_id": "n", "actors": 3, "virtual_nodes": 1, "scheduler": scheduler, "learner": learner}
        _child(supervisor, tmp_path, "actor", of_actors)
        async with PARLController(scheduler, learner=learner) as controller:
            orchestrator = PARLFederatedOrchestrator(controller, configuration)
            first = await orchestrator.parallel_training_round(nodes, timeout=60)
            second = await orchestrator.parallel_training_round(nodes, timeout=60)
            await orchestrator.stop()
        await supervisor.stop()
    assert first.updates == dict.fromkeys(nodes, "")
    assert (first.round, second.round) == (1, 2)
    assert second.version > first.version
    assert first.digest != second.digest
