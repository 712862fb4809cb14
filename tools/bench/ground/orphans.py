"""Adopts, ends and waits for the processes that a measured process leaves behind, so that the next run finds a quiet
machine.

Waiting also charges their processor time to their parent instead of to others.
"""

import contextlib
import ctypes
import os
import sys
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 3.0
_LOOK_SECONDS = 0.02


def adopt_orphans() -> None:
    """From now on, descendants whose parent ended become children of this process; only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans(grace_seconds: float = _GRACE_SECONDS) -> None:
    """Only for a process that no longer needs its children: waits for all of them, and kills those that remain."""
    deadline = time.monotonic() + grace_seconds
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if time.monotonic() >= deadline:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        time.sleep(_LOOK_SECONDS)
