"""Names of the files in which actors on the learner's host hand over trajectories instead of sending them."""

import os
import re
import stat
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from parlmesh.blobs.free_space import is_shared_memory, place_for_blobs
from parlmesh.blobs.private_folder import is_private_folder

KEY = "parlmesh-upload-files"
"""Key in the initial metadata of an upload stream; its value is the prefix of the file names."""
UNREADABLE = "UPLOAD_FILE"
"""The learner's reason when it cannot read a file: the actor sends the trajectory then."""
LEAST_BYTES, MOST_BYTES = 64 << 10, 4 << 20
"""Smaller requests cost no more when they are sent; larger ones would take much memory, as files are kept."""
FOLDER = re.compile(r"parlmesh-\d+-u[0-9a-f]{16}")
"""Names of the folders of all learners."""
_STREAM = re.compile(r"[0-9a-f]{32}")


def folder_of(run_dir: Path) -> Path | None:
    """The folder of a learner, always the same, so that a restart finds the files of a killed one; None without shared
    memory."""
    place = place_for_blobs()
    if not is_shared_memory(place):
        return None
    return place / f"parlmesh-{os.getuid()}-u{sha256(str(run_dir.resolve()).encode()).hexdigest()[:16]}"


def told_files(metadata: Iterable[Any] | None) -> str:
    """The prefix of this stream's file names; empty if the learner offers none, or not on this host.

    The name is random, so a file of that name shows that both see the same folder.
    """
    told = next((value for key, value in metadata or () if key == KEY and isinstance(value, str)), "")
    path = Path(told)
    named = FOLDER.fullmatch(path.parent.name) and _STREAM.fullmatch(path.name)
    # Nothing else may be written to, whatever a server says.
    if not told or not named or path.parent.parent != place_for_blobs() or not is_private_folder(path.parent):
        return ""
    try:
        return told if stat.S_ISREG(os.lstat(path).st_mode) else ""
    except OSError:
        return ""


def file_of(path: str, number: int) -> str:
    """One file of a stream."""
    return f"{path}-{number}"
