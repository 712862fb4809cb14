"""Files that are on disk when the call returns, and whole after a crash at any moment."""

import os
from pathlib import Path


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file and waits for the disk."""
    with path.open("wb") as file:
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
    write_synced(partial, data)
    partial.rename(path)
    sync_folder(path.parent)
