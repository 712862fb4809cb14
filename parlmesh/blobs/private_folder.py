"""Folders in shared memory, where anybody could have made one of the same name before."""

import os
import stat
from contextlib import suppress
from pathlib import Path


def make_private(folder: Path, *, parents: bool = False) -> bool:
    """Makes the folder if there is nothing of its name; returns whether this user alone may use what is there."""
    # A link that leads nowhere, or a file.
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=parents, exist_ok=True)
    return is_private_folder(folder)


def is_private_folder(folder: Path) -> bool:
    """Whether it is a folder, and no link to one, that this user alone may use."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
