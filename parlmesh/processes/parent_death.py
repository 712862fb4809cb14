"""Runs a command that ends with its parent: `python parent_death.py PARENT_PID SIGNAL COMMAND…`. Imports nothing of
parlmesh.

The kernel's parent-death signal survives exec, so the process list shows the command itself. Linux only; elsewhere the
command outlives a supervisor that is killed with -9.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Binds to the parent, checks that it is still alive, and becomes the command."""
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)  # under nohup it would be ignored
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(f"the parent {parent} has ended")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command is the supervisor's own
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
