"""Files that are on disk when the call returns, and whole after a crash at any moment."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file and waits for the disk. It must not be there: nobody's link is written through."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the names in the folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """The old content or the new one, never anything between."""
    partial = path.with_name(f".{path.name}.partial")
    with partial_path(partial):
        write_synced(partial, data)
        partial.rename(path)
    sync_folder(path.parent)


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
