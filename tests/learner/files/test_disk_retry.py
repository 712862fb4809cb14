"""A disk that refuses: /dev/full says ENOSPC to every write."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from learner.files.disk_retry import Disk, DiskRefuses
from learner.files.folder_lock import FolderLock
from learner.files.recorder import Lines
from learner.runs.obstacles import Obstacles
from parlmesh.durable_files import replace_file
from parlmesh.errors import FailedPrecondition

FULL = "/dev/full"


def test_lines_that_the_disk_refuses_are_written_later_in_order(tmp_path):
    lines = Lines(tmp_path / "lines")
    lines.add("one")
    good, full = lines._descriptor, os.open(FULL, os.O_WRONLY)
    lines._descriptor = full
    lines.add("two")
    lines.add("three")
    with pytest.raises(OSError, match="No space left on device"):
        lines.flush()
    assert lines.unwritten == b"two\nthree\n"
    lines._descriptor = good
    lines.flush()
    lines.add("four")
    lines.close()
    os.close(full)
    assert (tmp_path / "lines").read_text() == "one\ntwo\nthree\nfour\n"


def test_a_line_that_a_crash_cut_off_is_ended_first(tmp_path):
    (tmp_path / "lines").write_text("one\ntw")
    lines = Lines(tmp_path / "lines")
    lines.add("three")
    lines.close()
    assert (tmp_path / "lines").read_text() == "one\ntw\nthree\n"


async def test_a_run_waits_for_the_disk_and_says_so():
    met, tries = Obstacles("run"), []

    def write():
        tries.append(met.sentence)
        if len(tries) < 3:
            with open(FULL, "wb", buffering=0) as file:
                file.write(b"x")
        return "written"

    with ThreadPoolExecutor(1) as threads:
        assert await Disk(threads, met).write(write) == "written"
    assert tries == ["", *["cannot write a file of the run: No space left on device"] * 2]
    assert (met.sentence, met.kinds) == ("", ())


async def test_a_learner_that_leaves_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr("learner.files.disk_retry._LEAVING_SECONDS", 0.1)

    def write():
        raise PermissionError(13, "Permission denied", "/there")

    with ThreadPoolExecutor(1) as threads:
        disk = Disk(threads, Obstacles("run"))
        writing = asyncio.ensure_future(disk.write(write))
        await asyncio.sleep(0)
        disk.leave()
        with pytest.raises(DiskRefuses, match="cannot write /there: Permission denied"):
            await asyncio.wait_for(writing, 60)


def test_nothing_is_written_through_a_link_and_nothing_is_left_of_a_failure(tmp_path):
    (tmp_path / "elsewhere").write_text("theirs")
    (tmp_path / ".mine.partial").symlink_to(tmp_path / "elsewhere")
    replace_file(tmp_path / "mine", b"ours")
    assert (tmp_path / "elsewhere").read_text() == "theirs"
    assert (tmp_path / "mine").read_text() == "ours"
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "taken", b"ours")
    assert not (tmp_path / ".taken.partial").exists()


def test_a_folder_has_one_learner_whatever_is_deleted_in_it(tmp_path):
    first = FolderLock(tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    with pytest.raises(FailedPrecondition, match=r"run is in use by another learner"):
        FolderLock(tmp_path / "run")
    first.release()
    FolderLock(tmp_path / "run").release()
