"""Folders that are really emptied."""

from pathlib import Path

import pytest

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mapek.node.actions.folder import ClearFolder
from parlmesh.mapek.node.settings import NodeConfig


async def test_contents_are_deleted_but_nothing_behind_a_link(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "precious"
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "deeper" / "page").write_bytes(b"x" * 1000)
    (folder / "page").write_bytes(b"x")
    elsewhere.mkdir()
    (elsewhere / "letter").write_text("dear")
    (folder / "link").symlink_to(elsewhere)
    done = await ClearFolder().do({"folder": str(folder)}, NodeConfig())
    assert done.detail.startswith("3 entries")
    assert done.undo is None
    assert list(folder.iterdir()) == []
    assert (elsewhere / "letter").read_text() == "dear"
    # Repeating it changes nothing.
    assert (await ClearFolder().do({"folder": str(folder)}, NodeConfig())).detail.startswith("0 entries")


async def test_anything_but_a_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("file", "link", "absent"):
        with pytest.raises(FailedPrecondition, match="is not a folder"):
            await ClearFolder().do({"folder": str(tmp_path / name)}, NodeConfig())
    assert (tmp_path / "folder" / "kept").exists()


@pytest.mark.parametrize("folder", ["cache", "/var/../etc", "", "-rf", 7, None])
def test_a_path_that_could_mean_something_else_is_refused(folder: object) -> None:
    with pytest.raises(InvalidInput, match="folder of clear_folder"):
        ClearFolder().target({"folder": folder})
