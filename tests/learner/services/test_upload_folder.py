import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learner.services import upload_folder
from learner.services.upload_folder import UploadFolder, sweep
from parlmesh.upload_files import file_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"parlmesh-{os.getuid()}-u0123456789abcdef"


def descriptors() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if _is_open(each)}


def _is_open(descriptor: str) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").is_symlink()


def opened(folder, numbers=(0,)):
    """A stream whose actor has written these files, and whose learner has read them."""
    files = folder.open()
    assert files is not None
    for number in numbers:
        Path(file_of(str(files.path), number)).write_bytes(b"x")
        files.descriptor(number)
    return files


def _no_descriptors(monkeypatch):
    """Descriptors have run out; returns what ends that."""
    real = os.open

    def full(*arguments, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", full)
    return lambda: monkeypatch.setattr(os, "open", real)


def _wrong_mode(path):
    path.chmod(0o755)
    return lambda: path.chmod(0o700)


@pytest.mark.parametrize("fault", ["no descriptors", "mode"])
def test_a_stream_that_gets_no_files_leaves_those_of_others_alone_and_the_next_gets_some(path, monkeypatch, fault):
    folder = UploadFolder(path)
    first = opened(folder)
    heal = _no_descriptors(monkeypatch) if fault == "no descriptors" else _wrong_mode(path)
    assert folder.open() is None
    heal()
    later = opened(folder)
    folder.close(first)
    assert {each.name.split("-")[0] for each in path.iterdir()} == {later.path.name}
    folder.close(later)
    assert not path.exists()
    assert not [each for each in descriptors() if each.startswith(str(path))]


@pytest.mark.parametrize("fault", ["no descriptors", "mode"])
def test_streams_end_clean_while_no_other_can_get_files(path, monkeypatch, fault):
    folder = UploadFolder(path)
    first = opened(folder)
    heal = _no_descriptors(monkeypatch) if fault == "no descriptors" else _wrong_mode(path)
    assert folder.open() is None
    folder.close(None)
    folder.close(first)
    assert not path.exists()
    if fault == "no descriptors":
        heal()
    assert not [each for each in descriptors() if each.startswith(str(path))]


def test_a_first_stream_that_gets_no_files_leaves_nothing(path, monkeypatch):
    def fails(self, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(upload_folder.UploadFiles, "__init__", fails)
        assert UploadFolder(path).open() is None
    assert not path.exists()
    assert not [each for each in descriptors() if each.startswith(str(path))]


def test_the_end_of_a_stream_removes_its_files_without_looking_at_those_of_others(path, monkeypatch):
    folder = UploadFolder(path)
    first, other = opened(folder, (0, 1, 63)), opened(folder)

    def listed(*_):
        raise AssertionError("the folder was listed")

    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, listed)
        folder.close(first)
    assert sorted(each.name for each in path.iterdir()) == [other.path.name, f"{other.path.name}-0"]
    folder.close(other)


def test_the_last_stream_also_removes_what_an_actor_made_of_its_own_accord(path):
    folder = UploadFolder(path)
    files = opened(folder)
    Path(file_of(str(files.path), 1)).mkdir()
    (path / "other").mkdir()
    (path / "other" / "file").write_bytes(b"x")
    folder.close(files)
    assert not path.exists()


def test_a_folder_that_was_removed_is_made_again_for_the_next_stream(path):
    folder = UploadFolder(path)
    first = opened(folder)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    later = opened(folder)
    sweep(path.parent)
    assert later.path.exists()
    folder.close(first)
    folder.close(later)
    assert not path.exists()


_KILLED = """
import os, signal, sys
from pathlib import Path
from learner.services.upload_folder import UploadFolder
files = UploadFolder(Path(sys.argv[1])).open()
Path(f"{files.path}-0").write_bytes(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_learner_left_is_swept_by_any_other(path):
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False, timeout=120)
    assert killed.returncode == -9
    assert len(list(path.iterdir())) == 2
    sweep(path.parent)
    assert not path.exists()


def test_what_a_killed_learner_left_is_removed_before_its_next_stream(path):
    subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False, timeout=120)
    folder = UploadFolder(path)
    files = folder.open()
    assert files is not None
    assert [each.name for each in path.iterdir()] == [files.path.name]
    folder.close(files)


def test_a_sweep_leaves_what_is_in_use_and_what_is_no_folder_of_uploads(path):
    folder = UploadFolder(path)
    files = opened(folder)
    place = path.parent
    mine = place / "mine"
    mine.mkdir(mode=0o700)
    (place / f"parlmesh-{os.getuid()}-u{'1' * 16}").symlink_to(mine)
    (place / f"parlmesh-{os.getuid()}-u{'2' * 16}").mkdir(mode=0o755)
    (place / f"parlmesh-{os.getuid()}-u{'3' * 16}").write_bytes(b"x")
    for name in ("cache-" + "4" * 16, "4" * 16, "u" + "4" * 15, "u" + "4" * 16 + "x"):
        (place / f"parlmesh-{os.getuid()}-{name}").mkdir(mode=0o700)
    (place / f"parlmesh-{os.getuid() + 1}-u{'5' * 16}").mkdir(mode=0o700)
    before = set(place.rglob("*"))
    (place / f"parlmesh-{os.getuid()}-u{'6' * 16}").mkdir(mode=0o700)
    sweep(place)
    assert set(place.rglob("*")) == before
    folder.close(files)


def test_a_folder_that_another_learner_has_is_not_used(path):
    theirs, ours = UploadFolder(path), UploadFolder(path)
    files = opened(theirs)
    assert ours.open() is None
    theirs.close(files)
    files = opened(ours)
    ours.close(files)
