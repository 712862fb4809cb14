"""A disk and a clock that fail on command, for one process: shim.c compiled, and the page that controls it."""

import atexit
import ctypes
import mmap
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).with_name("shim.c")


class Page(ctypes.Structure):
    """The faults of the process, and how often each took place; the layout is that of shim.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "fsync_delay_ms",
            "fsync_errno",
            "write_errno",
            "short_writes",
            "bytes_left",
            "clock_shift_s",
            "slow_fsyncs",
            "failed_fsyncs",
            "failed_writes",
            "shortened_writes",
            "full_writes",
            "shifted_clocks",
        )
    ]


def available() -> bool:
    """Whether there is a compiler; these faults need one."""
    return shutil.which("gcc") is not None


@cache
def library() -> Path:
    """The shim, compiled once for this process."""
    folder = Path(tempfile.mkdtemp(prefix="fault-shim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", built, _SOURCE, "-ldl"], check=True)
    return built


class Shim:
    """The faults of one process; changes take effect at its next call."""

    def __init__(self, name: str, files: Path, folder: Path) -> None:
        """`files` is the folder whose files fail, `folder` the place for the page."""
        self._path = folder / f"{name}.page"
        self._path.write_bytes(bytes(mmap.PAGESIZE))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self._page = Page.from_buffer(self._map)
        self._page.bytes_left = -1
        self.environment = {
            "LD_PRELOAD": str(library()),
            "FAULT_SHIM_PAGE": str(self._path),
            "FAULT_SHIM_FOLDER": str(files.resolve()),
        }

    def set(self, **faults: int) -> None:
        """fsync_delay_ms, fsync_errno, write_errno, short_writes, bytes_left (-1 = unlimited), clock_shift_s."""
        for name, value in faults.items():
            setattr(self._page, name, value)

    def heal(self) -> None:
        """A good disk again; the clock stays shifted."""
        self.set(fsync_delay_ms=0, fsync_errno=0, write_errno=0, short_writes=0, bytes_left=-1)

    def seen(self, name: str) -> int:
        """How often a fault took place: slow_fsyncs, failed_fsyncs, failed_writes, shortened_writes, full_writes, …"""
        found: Any = getattr(self._page, name)
        return int(found)
