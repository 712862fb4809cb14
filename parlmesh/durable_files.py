"""Writes files that are on disk when the call returns and intact after a crash at any moment."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

PRIVATE = 0o600
"""Readable and writable by the owner only."""


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replaces a file atomically: readers see the old content or the new. `mode` applies before the umask."""
    partial = path.with_name(f".{path.name}.partial")
    with partial_path(partial):
        write_synced(partial, data, mode=mode)
        partial.rename(path)
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Writes a new file and waits for the disk. Fails if the path exists, so it never writes through a link."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes everything, continuing after short writes; raises OSError when the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Makes files created or renamed in the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def partial_path(path: Path) -> Iterator[None]:
    """Removes the path first, and again on failure: a partial file must not keep a full disk full."""
    remove(path)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            remove(path)
        raise


def remove(path: Path) -> None:
    """Removes a file, a folder with its contents, or a link but not its target. A missing path is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
