"""One learner per folder. The folder itself is locked: there is no lock file that somebody could delete."""

import contextlib
import fcntl
import os
from pathlib import Path

from parlmesh.errors import FailedPrecondition


class FolderLock:
    """Held until it is released, or the process ends."""

    def __init__(self, folder: Path) -> None:
        """FailedPrecondition when another learner has the folder; it is made when it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            if not isinstance(error, BlockingIOError):
                raise
            message = f"the folder {folder} is in use by another learner: stop it, or choose another run_dir"
            raise FailedPrecondition(message, reason="FOLDER_IN_USE", folder=folder) from None

    def release(self) -> None:
        """Lets another learner have it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
