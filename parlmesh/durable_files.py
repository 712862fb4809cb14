"""Files that are on disk when the call returns, and whole after a crash at any moment."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

PRIVATE = 0o600
"""Readable by the owner alone."""


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """The old content or the new one, never anything between. `mode` is that of a new file, before the umask."""
    partial = path.with_name(f".{path.name}.partial")
    with partial_path(partial):
        write_synced(partial, data, mode=mode)
        partial.rename(path)
    sync_folder(path.parent)


def write_synced(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Writes a new file and waits for the disk. It must not be there: nobody's link is written through."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Goes on after a short write; OSError when nothing more can be written."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Names that were made or changed in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def partial_path(path: Path) -> Iterator[None]:
    """Free at the start, and again when something goes wrong: what is left of a full disk must not fill it."""
    remove(path)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            remove(path)
        raise


def remove(path: Path) -> None:
    """A file, a folder with all in it, or a link, of which only the link; nothing when there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
