"""Whether a store cannot be opened only because the disk is full, which passes once space is freed."""

import errno
import os
from contextlib import suppress
from pathlib import Path

# Time between two tries to open a store whose disk is full.
RETRY_SECONDS = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
# SQLite needs this much for the index of its log, and reports an I/O error without it.
_LEAST_BYTES = 64 * 1024


def is_full(error: OSError, path: Path) -> bool:
    """`path` is the store's file, which may not exist yet; if it is anything but a file, space is not the problem."""
    if path.exists() and not path.is_file():
        return False
    if error.errno in _FULL:
        return True
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        return disk.f_bavail * disk.f_frsize < _LEAST_BYTES
    return False
