import json

import numpy as np
import pytest

from learner.files.checkpoint import Checkpoint, CheckpointFolder


def checkpoint(version):
    return Checkpoint(version, {"steps": version * 10}, {"w": np.full(5, version, np.float32)})


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints", kept=3)


def test_a_checkpoint_comes_back_as_it_was(folder):
    folder.save(checkpoint(7))
    found = folder.newest()
    assert (found.version, found.counters) == (7, {"steps": 70})
    np.testing.assert_array_equal(found.tensors["w"], np.full(5, 7, np.float32))


def test_there_is_none_before_the_first(folder):
    assert folder.newest() is None


def test_only_the_newest_are_kept(folder):
    for version in range(1, 12):
        folder.save(checkpoint(version))
    assert sorted(path.name for path in folder.path.iterdir()) == ["v00000009", "v00000010", "v00000011"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "state.safetensors").write_bytes(b"\x80\x04K\x01."),
        lambda path: (path / "state.safetensors").write_bytes((path / "state.safetensors").read_bytes()[:-1]),
        lambda path: (path / "state.safetensors").unlink(),
        lambda path: (path / "checkpoint.json").write_text("{"),
        lambda path: (path / "checkpoint.json").write_text(json.dumps({"version": 2})),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(folder, damage, caplog):
    folder.save(checkpoint(1))
    damage(folder.save(checkpoint(2)))
    assert folder.newest().version == 1
    assert "checkpoint_damaged" in caplog.text


@pytest.mark.parametrize("moment", ["write_synced", "sync_folder"])
def test_a_crash_while_writing_leaves_the_older_ones_as_they_were(folder, monkeypatch, moment):
    folder.save(checkpoint(1))
    calls = []

    def crash(*arguments):
        calls.append(arguments)
        raise OSError("power went out")

    monkeypatch.setattr(f"learner.files.checkpoint.{moment}", crash)
    with pytest.raises(OSError, match="power"):
        folder.save(checkpoint(2))
    assert calls
    monkeypatch.undo()
    assert folder.newest().version == 1
    folder.save(checkpoint(2))
    assert folder.newest().version == 2


def test_saving_a_version_again_replaces_it(folder):
    folder.save(checkpoint(1))
    folder.save(Checkpoint(1, {"steps": 99}, checkpoint(1).tensors))
    assert folder.newest().counters == {"steps": 99}
