"""The shim injects the requested faults into the named files, and counts them."""

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.faults import shim as shims
from tools.faults.shim import Shim

pytestmark = pytest.mark.skipif(not shims.available(), reason="there is no gcc to compile the shim with")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


@pytest.fixture
def shim(files: Path, tmp_path: Path) -> Shim:
    return Shim("python", files, tmp_path)


def run(shim: Shim, code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=shim.environment, check=True, capture_output=True, text=True).stdout.strip()


def write(path: Path, size: int) -> str:
    """Prints how many bytes were taken, or the error."""
    return f"""
import os
file = os.open({str(path)!r}, os.O_WRONLY | os.O_CREAT)
try:
    print(os.write(file, b"x" * {size}))
    os.fsync(file)
except OSError as error:
    print(error.errno)
"""


def test_without_faults_nothing_changes(shim: Shim, files: Path) -> None:
    assert run(shim, write(files / "a", 1000)) == "1000"


def test_a_full_disk_takes_what_fits_and_then_nothing(shim: Shim, files: Path) -> None:
    shim.set(bytes_left=600)
    assert run(shim, write(files / "a", 1000)) == "600"
    assert run(shim, write(files / "b", 1000)) == str(errno.ENOSPC)
    assert shim.seen("full_writes") == 2
    shim.heal()
    assert run(shim, write(files / "b", 1000)) == "1000"


def test_writes_are_cut_and_errors_are_given(shim: Shim, files: Path) -> None:
    shim.set(short_writes=1)
    assert run(shim, write(files / "a", 1000)) == "500"
    shim.set(write_errno=errno.EIO)
    assert run(shim, write(files / "a", 1000)) == str(errno.EIO)
    shim.set(write_errno=0, short_writes=0, fsync_errno=errno.EIO)
    assert run(shim, write(files / "a", 1000)) == f"1000\n{errno.EIO}"
    assert [shim.seen(name) for name in ("shortened_writes", "failed_writes", "failed_fsyncs")] == [1, 1, 1]


def test_fsync_is_slow_when_told(shim: Shim, files: Path) -> None:
    shim.set(fsync_delay_ms=300)
    started = time.monotonic()
    run(shim, write(files / "a", 10))
    assert time.monotonic() - started >= 0.3
    assert shim.seen("slow_fsyncs") == 1


def test_files_elsewhere_are_left_alone(shim: Shim, tmp_path: Path) -> None:
    shim.set(write_errno=errno.EIO, fsync_errno=errno.EIO)
    assert run(shim, write(tmp_path / "elsewhere", 1000)) == "1000"


def test_the_wall_clock_moves_and_the_monotonic_one_does_not(shim: Shim) -> None:
    shim.set(clock_shift_s=-3600)
    wall, monotonic = run(shim, "import time; print(time.time(), time.monotonic())").split()
    assert abs(time.time() - 3600 - float(wall)) < 60
    assert abs(time.monotonic() - float(monotonic)) < 60
    assert shim.seen("shifted_clocks") > 0


def test_sqlite_meets_the_full_disk(shim: Shim, files: Path) -> None:
    shim.set(bytes_left=20_000)
    code = f"""
import sqlite3
database = sqlite3.connect({str(files / "d.sqlite")!r}, isolation_level=None)
database.execute("PRAGMA journal_mode = WAL")
database.execute("CREATE TABLE t (b BLOB)")
try:
    database.execute("INSERT INTO t VALUES (zeroblob(100000))")
except sqlite3.OperationalError as error:
    print(error)
"""
    assert run(shim, code) == "database or disk is full"
