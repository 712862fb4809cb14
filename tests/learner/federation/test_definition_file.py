import os
from pathlib import Path

import numpy as np
import pytest

from learner.federation import definition_file
from parlmesh.federation.config import FederationConfig
from parlmesh.federation.learning_task import FirstModel


def test_a_federation_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut leaves it whole or not there: contents are synced, then names."""
    steps: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        steps.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        steps.append(("rename", target.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    config = FederationConfig.model_validate({"task": "drift", "rounds": 2, "privacy": {"mode": "central"}})
    definition_file.create(tmp_path / "f", "f", config, FirstModel({"w": np.ones(5, np.float32)}))
    about = [
        ("sync", ".federation.json.partial"),
        ("rename", "federation.json"),
        ("sync", ".partial-f"),
        ("rename", "f"),
        ("sync", tmp_path.name),
    ]
    assert steps[-len(about) :] == about
    assert ("sync", ".noise.key.partial") in steps[: -len(about)]
