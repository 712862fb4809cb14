"""Folders of blobs: private, and never left behind."""

import os
from pathlib import Path

import pytest

from parlmesh.errors import FailedPrecondition
from scheduler import blob_folder
from scheduler.blob_folder import STORE, claim, folder_of, sweep
from scheduler.config import BlobConfig, StoreConfig


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(blob_folder, "place_for_blobs", lambda: tmp_path)
    return tmp_path


def test_what_a_killed_scheduler_without_a_file_left_is_removed_by_the_next(place: Path) -> None:
    folders = [folder_of(BlobConfig(), StoreConfig(kind="memory")) for _ in range(2)]
    dead, alive = (claim(folder) for folder in folders)
    durable = folder_of(BlobConfig(), StoreConfig(path=place / "tasks.sqlite"))
    os.close(claim(durable))
    (folders[0] / "array").write_bytes(b"large")
    sweep(place)
    assert sorted(place.iterdir()) == sorted([*folders, durable])
    os.close(dead)
    sweep(place)
    assert sorted(place.iterdir()) == sorted([folders[1], durable])
    os.close(alive)


def test_a_folder_whose_lock_is_gone_is_removed_too_when_nobody_is_just_making_it(place: Path) -> None:
    folders = [folder_of(BlobConfig(), StoreConfig(kind="memory")) for _ in range(2)]
    for folder in folders:
        folder.mkdir()
        (folder / ".0123456789abcdef").touch()
    os.utime(folders[0], (0, 0))
    sweep(place)
    assert list(place.iterdir()) == [folders[1]]


def test_a_folder_whose_store_was_removed_long_ago_is_removed(place: Path) -> None:
    stores = {name: place / f"{name}.sqlite" for name in ("kept", "gone", "young", "used")}
    folders = {name: folder_of(BlobConfig(), StoreConfig(path=path)) for name, path in stores.items()}
    claims = {name: claim(folder, stores[name]) for name, folder in folders.items()}
    stores["kept"].touch()
    for name in claims:
        if name != "used":
            os.close(claims[name])
        if name != "young":
            os.utime(folders[name] / STORE, (0, 0))
    (folders["gone"] / "array").write_bytes(b"large")
    sweep(place)
    assert {name for name, folder in folders.items() if folder.exists()} == {"kept", "young", "used"}
    os.close(claims["used"])


def test_a_scheduler_with_a_file_finds_its_folder_again(place: Path) -> None:
    store = StoreConfig(path=place / "tasks.sqlite")
    assert folder_of(BlobConfig(), store) == folder_of(BlobConfig(), store)
    assert folder_of(BlobConfig(folder=place / "own"), store) == place / "own"


def test_a_folder_that_others_may_read_is_not_used(place: Path) -> None:
    (place / "open").mkdir(mode=0o755)
    (place / "link").symlink_to(place / "open")
    for name in ("open", "link"):
        with pytest.raises(FailedPrecondition, match="must be a folder that this user alone may read"):
            claim(place / name)


def test_a_folder_that_another_scheduler_uses_is_refused_until_that_one_has_gone(place: Path) -> None:
    first = claim(place / "shared")
    with pytest.raises(FailedPrecondition, match="in use by another scheduler"):
        claim(place / "shared")
    os.close(first)
    os.close(claim(place / "shared"))
