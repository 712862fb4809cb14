"""What a measured process leaves behind: adopted, ended and waited for, so that the next run finds a quiet machine.

Waiting for them also charges their processor time to their maker instead of to others.
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
    """Only for a process that needs none of its children any more: waits for all of them, and kills what stays."""
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
