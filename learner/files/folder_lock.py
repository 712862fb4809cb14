"""One learner per folder. The folder itself is locked, so there is no lock file that could be deleted."""

import contextlib
import fcntl
import os
from pathlib import Path

from parlmesh.errors import FailedPrecondition


class FolderLock:
    """A lock that is held until it is released or the process ends."""

    def __init__(self, folder: Path) -> None:
        """Creates the folder if necessary; FailedPrecondition when another learner has it."""
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
        """Lets another learner have the folder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)
