"""The folder of a scheduler's blobs: choosing it, claiming it, and removing those left behind."""

import fcntl
import os
import secrets
import shutil
import stat
import time
from hashlib import sha256
from pathlib import Path

from parlmesh.blobs.free_space import place_for_blobs
from parlmesh.blobs.private_folder import make_private
from parlmesh.errors import FailedPrecondition
from parlmesh.telemetry import get_logger

from .config import BlobConfig, StoreConfig

log = get_logger("parlmesh.scheduler")

LOCK = ".lock"
STORE = ".store"
"""Holds the path of the store whose blobs these are."""
# Marks a folder that no scheduler looks for after a restart.
_FORGOTTEN = "m"
# The lock is created right after its folder.
_MAKING_SECONDS = 60.0
# A store that is missing for longer was removed, and not only moved or not mounted.
_MISSING_SECONDS = 86_400.0


def folder_of(config: BlobConfig, store: StoreConfig) -> Path:
    """The configured folder, or one in shared memory, named after the store so that a restart finds it again."""
    if config.folder is not None:
        return config.folder
    # Several schedulers of one database may share a machine; the address tells their folders apart.
    place = {
        "memory": "",
        "sqlite": str(store.path.resolve()),
        "postgresql": store.address and store.url + store.address,
    }
    own = sha256(place[store.kind].encode()).hexdigest()[:16] if place[store.kind] else ""
    return place_for_blobs() / f"{_beginning()}{own or _FORGOTTEN + secrets.token_hex(8)}"


def claim(folder: Path, store: Path | None = None) -> int:
    """Makes the folder, checks that this user owns it, and locks it until the descriptor is closed or the process ends.
    `store`: the file without which nobody will look for these blobs.

    In shared memory, any user could have made a folder of this name first, to read what is written to it.
    """
    if not make_private(folder, parents=True):
        raise FailedPrecondition(
            f"{folder} must be a folder that this user alone may read; remove it, or set blobs.folder",
            reason="BLOB_FOLDER",
        )
    held = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not _is_free(held):
        os.close(held)
        raise FailedPrecondition(
            f"{folder} is in use by another scheduler; set another blobs.folder", reason="BLOB_FOLDER"
        )
    if store is not None:
        (folder / STORE).write_bytes(os.fsencode(store.resolve()))
    return held


def is_claimed(folder: Path, held: int) -> bool:
    """Whether the folder is still the one that was locked. An operator may have removed it, or systemd, which removes
    what a user has in shared memory when the user logs out (RemoveIPC)."""
    try:
        return os.path.samestat(os.lstat(folder / LOCK), os.fstat(held))
    except FileNotFoundError:
        return False


def sweep(place: Path) -> None:
    """Removes the folders of killed schedulers that no restart looks for."""
    for folder in place.glob(f"{_beginning()}*"):
        if not folder.name.startswith(f"{_beginning()}{_FORGOTTEN}") and not _is_without_store(folder):
            continue
        try:
            held = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            # It was being removed while a process wrote to it, or it is just being made.
            if _age(folder) > _MAKING_SECONDS:
                _remove(folder)
            continue
        except OSError:
            continue
        try:
            if _is_free(held):
                _remove(folder)
        finally:
            os.close(held)


def _is_without_store(folder: Path) -> bool:
    """Whether the folder names a store that has been missing for long."""
    try:
        age = time.time() - os.lstat(folder / STORE).st_mtime
        store = (folder / STORE).read_bytes()
        return age > _MISSING_SECONDS and not os.path.lexists(store)
    except (OSError, ValueError):
        return False


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log.info("blobs_swept", folder=str(folder))


def _age(folder: Path) -> float:
    """Seconds since an entry in it was made; 0 when it no longer exists or is not this user's folder."""
    try:
        found = os.lstat(folder)
    except OSError:
        return 0.0
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return 0.0
    return time.time() - found.st_mtime


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _beginning() -> str:
    return f"parlmesh-{os.getuid()}-"
