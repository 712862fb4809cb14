"""Empties a folder, such as a cache that fills a disk."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlmesh.errors import FailedPrecondition, InvalidInput

from ..settings import NodeConfig
from .action import Done, text_of


class ClearFolder:
    """Parameters: folder, an absolute path. Its contents are deleted; the folder is kept. Cannot be undone."""

    kind = "clear_folder"

    def target(self, parameters: Mapping[str, Any]) -> str:
        """The folder."""
        folder = text_of(parameters, "folder", self.kind)
        if not Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise InvalidInput(f"folder of {self.kind} must be an absolute path without .., got {folder!r}")
        return folder

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Deletes everything in it; links are removed, never followed."""
        folder = Path(self.target(parameters))
        count = await asyncio.to_thread(_emptied, folder)
        return Done(f"{count} entries of {folder} were deleted")

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """Not possible: deleted files stay deleted."""
        raise FailedPrecondition("deleted files cannot be put back", reason="NO_UNDO")


def _emptied(folder: Path) -> int:
    if folder.is_symlink() or not folder.is_dir():
        raise FailedPrecondition(f"{folder} is not a folder", reason="NO_FOLDER")
    entries = list(folder.iterdir())
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    return len(entries)
