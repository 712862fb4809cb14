"""Where blobs lie, how much of it they may take, and what is said when there is no room."""

import errno
import os
import tempfile
from pathlib import Path

from parlmesh.errors import FailedPrecondition, FleetError, ResourceExhausted

NO_ROOM = "BLOB_FOLDER_FULL"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of one's own are made in it
# A container's usual 64 MiB hold no arrays worth the name.
_LEAST_SHARED_BYTES = 1 << 30
_USABLE = 0.8
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
# As long as tasks take that hold arrays of the same folder.
_RETRY_SECONDS = 1.0


def place_for_blobs() -> Path:
    """Shared memory, or the folder of temporary files where there is little of it."""
    if _SHARED_MEMORY.is_dir() and usable_bytes(_SHARED_MEMORY) >= _USABLE * _LEAST_SHARED_BYTES:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def usable_bytes(folder: Path) -> int:
    """As much of its file system as blobs may take."""
    found = os.statvfs(folder)
    return int(found.f_blocks * found.f_frsize * _USABLE)


def is_shared_memory(folder: Path) -> bool:
    """Whether its files are memory: there, pages that were written once can be written again without fail."""
    return _SHARED_MEMORY.is_dir() and folder.stat().st_dev == _SHARED_MEMORY.stat().st_dev


def is_full(error: OSError) -> bool:
    """Whether room is all that is missing: that passes when arrays go, or when somebody frees some."""
    return error.errno in _FULL


def cannot_keep(what: str, size: int, folder: Path, error: OSError) -> FleetError:
    """Why so many bytes were not written there."""
    if not is_full(error):
        text = f"{what} of {size} bytes cannot be kept in {folder}: {error.strerror}"
        return FailedPrecondition(text, reason="BLOB_FOLDER", folder=folder, size_bytes=size)
    free = free_bytes(folder)
    text = f"{what} of {size} bytes cannot be kept in {folder}: {free} bytes are free there ({error.strerror})"
    return ResourceExhausted(
        text, reason=NO_ROOM, retry_after_seconds=_RETRY_SECONDS, folder=folder, size_bytes=size, free_bytes=free
    )


def free_bytes(folder: Path) -> int:
    """What whoever is no superuser may still write there; 0 when the folder itself is gone."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
