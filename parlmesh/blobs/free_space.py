"""The place where blobs are kept, how much room they may take, and the errors when there is none."""

import errno
import os
import tempfile
from pathlib import Path

from parlmesh.errors import FailedPrecondition, FleetError, ResourceExhausted

NO_ROOM = "BLOB_FOLDER_FULL"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only private folders are made in it
# A container's usual 64 MiB are too little for large arrays.
_LEAST_SHARED_BYTES = 1 << 30
_USABLE = 0.8
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
# About as long as tasks take that hold arrays of the same folder.
_RETRY_SECONDS = 1.0


def place_for_blobs() -> Path:
    """Shared memory, or the folder for temporary files if there is little shared memory."""
    if _SHARED_MEMORY.is_dir() and usable_bytes(_SHARED_MEMORY) >= _USABLE * _LEAST_SHARED_BYTES:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def usable_bytes(folder: Path) -> int:
    """How much of the folder's file system blobs may take."""
    found = os.statvfs(folder)
    return int(found.f_blocks * found.f_frsize * _USABLE)


def is_shared_memory(folder: Path) -> bool:
    """Whether the folder's files are memory: pages written once can always be written again."""
    return _SHARED_MEMORY.is_dir() and folder.stat().st_dev == _SHARED_MEMORY.stat().st_dev


def is_full(error: OSError) -> bool:
    """Whether only room is missing, which may pass as arrays are removed."""
    return error.errno in _FULL


def cannot_keep(what: str, size: int, folder: Path, error: OSError) -> FleetError:
    """The error for bytes that could not be written to a folder."""
    if not is_full(error):
        text = f"{what} of {size} bytes cannot be kept in {folder}: {error.strerror}"
        return FailedPrecondition(text, reason="BLOB_FOLDER", folder=folder, size_bytes=size)
    free = free_bytes(folder)
    text = f"{what} of {size} bytes cannot be kept in {folder}: {free} bytes are free there ({error.strerror})"
    return ResourceExhausted(
        text, reason=NO_ROOM, retry_after_seconds=_RETRY_SECONDS, folder=folder, size_bytes=size, free_bytes=free
    )


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user may still write there; 0 if the folder does not exist."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
