"""Files in shared memory for the trajectories of actors on this host: reading one takes a third of receiving it."""

import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from parlmesh.errors import FailedPrecondition
from parlmesh.telemetry import get_logger
from parlmesh.upload_files import KEY, UNREADABLE, file_of, is_private

log = get_logger("parlmesh.learner")

# As many as an actor may have in flight.
_MOST_FILES = 64


class UploadFolder:
    """Exists while streams are open; files that a killed learner left in it are removed before the first stream."""

    def __init__(self, path: Path | None) -> None:
        """None = actors send everything."""
        self._path = path
        self._streams = 0

    def open(self) -> "UploadFiles | None":
        """The files of a new stream; None if there is no folder for them."""
        if self._path is None:
            return None
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            if not is_private(self._path):
                raise PermissionError(f"{self._path} must be a folder that this user alone may read")
            if not self._streams:
                _remove(self._path, "")
            files = UploadFiles(self._path / secrets.token_hex(16))
        except OSError as error:
            log.warning("no_upload_folder", path=str(self._path), error=str(error))
            self._path = None
            return None
        self._streams += 1
        return files

    def close(self, files: "UploadFiles | None") -> None:
        """Removes the files of a stream that has ended, and with the last one the folder."""
        if files is None or self._path is None:
            return
        self._streams -= 1
        files.close()
        _remove(self._path, files.path.name)
        if not self._streams:
            with suppress(OSError):
                self._path.rmdir()


class UploadFiles:
    """The files of one stream. They stay open, because the actor writes to the same ones repeatedly."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptors: dict[int, int] = {}
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Tells the actor."""
        return ((KEY, str(self.path)),)

    def descriptor(self, number: int) -> int:
        """The open file of this number; raises FailedPrecondition if there is none."""
        found = self._descriptors.get(number)
        if found is None:
            if number >= _MOST_FILES:
                raise unreadable(f"file {number} is not among the {_MOST_FILES} of this stream")
            try:
                found = os.open(
                    file_of(str(self.path), number), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                )
            except OSError as error:
                raise unreadable(f"file {number} cannot be opened: {error.strerror}") from None
            if not stat.S_ISREG(os.fstat(found).st_mode):
                os.close(found)
                raise unreadable(f"file {number} is no regular file")
            self._descriptors[number] = found
        return found

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def unreadable(why: str) -> FailedPrecondition:
    """The actor sends the trajectory itself then."""
    return FailedPrecondition(why, reason=UNREADABLE)


def _remove(folder: Path, beginning: str) -> None:
    with suppress(OSError):
        for file in folder.iterdir():
            if not file.name.startswith(beginning):
                continue
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)
