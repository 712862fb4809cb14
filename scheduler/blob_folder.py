"""Where a scheduler's blobs lie, that the place is its own, and that nobody's is left behind."""

import fcntl
import os
import secrets
import shutil
import stat
from hashlib import sha256
from pathlib import Path

from parlmesh.blobs.folder import place_for_blobs
from parlmesh.errors import FailedPrecondition
from parlmesh.telemetry import get_logger

from .config import BlobConfig, StoreConfig

log = get_logger("parlmesh.scheduler")

LOCK = ".lock"
# Of schedulers whose tasks end with them: nobody comes back for these folders.
_FORGOTTEN = "m"


def folder_of(config: BlobConfig, store: StoreConfig) -> Path:
    """The setting, or one in shared memory; a scheduler with a file finds its own again after a restart."""
    if config.folder is not None:
        return config.folder
    # Several schedulers of one database may be on one machine: each is known by its address.
    place = {
        "memory": "",
        "sqlite": str(store.path.resolve()),
        "postgresql": store.address and store.url + store.address,
    }
    own = sha256(place[store.kind].encode()).hexdigest()[:16] if place[store.kind] else ""
    return place_for_blobs() / f"{_beginning()}{own or _FORGOTTEN + secrets.token_hex(8)}"


def claim(folder: Path) -> int:
    """Makes the folder, sees that it is this user's, and holds it until the descriptor is closed or the process ends.

    Anybody may make folders in shared memory, also one of this name, and would then read along.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
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
    return held


def sweep(place: Path) -> None:
    """Removes the folders of schedulers that were killed and whose tasks ended with them."""
    for folder in place.glob(f"{_beginning()}{_FORGOTTEN}*"):
        try:
            held = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _is_free(held):
                shutil.rmtree(folder, ignore_errors=True)
                log.info("blobs_swept", folder=str(folder))
        finally:
            os.close(held)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _beginning() -> str:
    return f"parlmesh-{os.getuid()}-"
