"""Small files that are there whole or not at all, readable by their owner alone."""

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Puts a file in place of whatever was there; it survives a power cut. OSError leaves the old one as it was."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


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
