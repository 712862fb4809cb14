"""A fleet of fifty nodes on this machine, whose readings a test chooses."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from parlmesh.client import PARLController
from parlmesh.client.sync import Controller
from parlmesh.mapek.config import MapekConfig
from parlmesh.mapek.execute_handler import Execute
from parlmesh.mapek.handlers import Analyse, Plan
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.loop import MapekLoop
from parlmesh.mapek.node.settings import VARIABLE

from .local_fleet import LocalFleet, Readings

NODES = 50
HERE = Path(__file__).parent
PLUGINS = ["parlmesh.mapek.plugin:plugin", f"{HERE}/sick_nodes.py:plugin"]


class Mesh:
    """The readings a test gives its nodes, and the actions taken on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""

    def says(self, **readings: Any) -> None:
        whole = {"*": {"cpu_percent": 20.0, "memory_percent": 30.0}, **{_node(k): v for k, v in readings.items()}}
        partial = self.folder / "readings.partial"
        partial.write_text(json.dumps(whole))
        partial.rename(self.folder / "readings.json")

    def deeds(self) -> list[str]:
        file = self.folder / "deeds"
        return file.read_text().splitlines() if file.exists() else []

    def fresh(self) -> None:
        (self.folder / "deeds").unlink(missing_ok=True)
        self.says()


def _node(word: str) -> str:
    return word.replace("_", "-") if word.startswith("local") else word


@pytest.fixture(scope="module")
def mesh_of_fifty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("mesh")
    settings = folder / "node.yaml"
    settings.write_text(
        yaml.safe_dump(
            {"state": str(folder / "state"), "allow": {"mend": ["*"]}, "actions": {"mend": "sick_nodes:Mend"}}
        )
    )
    patch = pytest.MonkeyPatch()
    patch.setenv("SICK_NODES", str(folder))
    patch.setenv(VARIABLE, str(settings))
    patch.syspath_prepend(str(HERE))
    assert str(HERE) in sys.path
    mesh = Mesh(folder)
    mesh.says()
    try:
        with Controller() as controller:
            controller.initialize(NODES, actor={"plugins": PLUGINS, "virtual_nodes": 1, "slots": 4}, processes=5)
            mesh.address = controller.address
            yield mesh
    finally:
        patch.undo()


@pytest.fixture
def mesh(mesh_of_fifty: Mesh) -> Mesh:
    mesh_of_fifty.fresh()
    return mesh_of_fifty


@pytest.fixture
async def controller(mesh: Mesh):
    async with PARLController(mesh.address) as found:
        yield found


def config(**changes: Any) -> MapekConfig:
    """CPU above 80 and memory above 85 are repaired; memory is more urgent."""
    return MapekConfig.model_validate(
        {
            "name": "test",
            "dry_run": False,
            "kinds": {"monitor": "fake_monitor"},
            "thresholds": [
                {"metric": "cpu_percent", "above": 80, "clear": 65},
                {"metric": "memory_percent", "above": 85, "clear": 75, "severity": "critical"},
            ],
            "rules": [
                {"symptom": "cpu_percent", "actions": ["mend-cpu"]},
                {"symptom": "memory_percent", "actions": ["mend-memory"]},
            ],
            "actions": {
                "mend-cpu": {"kind": "mend", "parameters": {"node": "{node}", "word": "cpu"}, "expected": "less"},
                "mend-memory": {"kind": "mend", "parameters": {"node": "{node}", "word": "memory"}},
            },
            **changes,
        }
    )


@pytest.fixture
def knowledge(tmp_path: Path) -> Iterator[Knowledge]:
    with Knowledge(tmp_path / "knowledge.sqlite") as found:
        yield found


@pytest.fixture
def loop_of(controller: PARLController, knowledge: Knowledge, request: pytest.FixtureRequest):
    """Makes loops with names unique to each test, so that the nodes hold no state of another test."""

    def make(**changes: Any) -> MapekLoop:
        clock = changes.pop("clock", None)
        kept = changes.pop("knowledge", knowledge)
        name = changes.pop("name", request.node.name[-60:].replace("[", "-").replace("]", ""))
        settings = config(**{"name": name, "lease_seconds": 0.001, **changes})
        return MapekLoop(controller, settings, kept, **({"clock": clock} if clock else {}))

    return make


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines that the action of `lever.py` wrote."""
    settings = tmp_path / "node.yaml"
    allow = {"allow": {"lever": ["*"]}, "actions": {"lever": "lever:Lever"}}
    settings.write_text(yaml.safe_dump({"state": str(tmp_path / "state"), **allow}))
    monkeypatch.setenv(VARIABLE, str(settings))
    monkeypatch.setenv("LEVER", str(tmp_path / "notes"))
    monkeypatch.syspath_prepend(str(HERE))
    file = tmp_path / "notes"
    return lambda: file.read_text().split() if file.exists() else []


@pytest.fixture
def readings() -> Readings:
    return Readings()


@pytest.fixture
def fleet(readings: Readings) -> LocalFleet:
    """Two nodes in this process."""
    handlers: dict[str, Any] = {each.kind: each for each in (readings, Analyse(), Plan(), Execute())}
    return LocalFleet(handlers, ["a", "b"])
