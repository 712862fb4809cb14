"""Writing files that hold secrets or are read while they change."""

import os
from collections.abc import Sequence
from pathlib import Path

from parlmesh.errors import AlreadyExists


def refuse_existing(files: Sequence[Path], *, force: bool) -> None:
    """AlreadyExists naming the first file there is, unless `force` is on."""
    for file in files:
        if file.exists() and not force:
            raise AlreadyExists(f"{file} exists; --force replaces it", file=file)


def write_file(file: Path, content: bytes, *, mode: int) -> None:
    """The mode holds from the first moment; a reader sees the old file or the new one, whole."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        # The umask may have taken away what others need to read.
        os.fchmod(descriptor, mode)
        stream.write(content)
    fresh.replace(file)
