"""Writes files that hold secrets or are read while they change."""

import os
from collections.abc import Sequence
from pathlib import Path

from parlmesh.errors import AlreadyExists


def refuse_existing(files: Sequence[Path], *, force: bool) -> None:
    """Raises AlreadyExists for the first file that exists, unless `force` is on."""
    for file in files:
        if file.exists() and not force:
            raise AlreadyExists(f"{file} exists; --force replaces it", file=file)


def write_file(file: Path, content: bytes, *, mode: int) -> None:
    """Writes a file that has its mode from the start; readers see the complete old file or the complete new one."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        # The umask may have removed permissions that readers need.
        os.fchmod(descriptor, mode)
        stream.write(content)
    fresh.replace(file)
