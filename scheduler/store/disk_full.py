"""Whether a store cannot be opened for want of space alone: that passes by itself, or by somebody who frees some."""

import errno
import os
from contextlib import suppress
from pathlib import Path

# Between two tries to open a store whose disk is full.
RETRY_SECONDS = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
# SQLite needs this much for the index of its log, and calls its absence an I/O error.
_LEAST_BYTES = 64 * 1024


def is_full(error: OSError, path: Path) -> bool:
    """`path` is the store's file, which may not be there yet; what is no file never has room."""
    if path.exists() and not path.is_file():
        return False
    if error.errno in _FULL:
        return True
    with suppress(OSError):
        disk = os.statvfs(path.parent)
        return disk.f_bavail * disk.f_frsize < _LEAST_BYTES
    return False
