"""Files in shared memory for the trajectories of actors on this host: reading one takes a third of receiving it."""

import fcntl
import os
import secrets
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from parlmesh.blobs.private_folder import is_private_folder, make_private
from parlmesh.errors import FailedPrecondition
from parlmesh.telemetry import get_logger
from parlmesh.upload_files import FOLDER, KEY, UNREADABLE, file_of

log = get_logger("parlmesh.learner")

# As many as an actor may have in flight.
_MOST_FILES = 64


class UploadFolder:
    """Exists, locked, while streams are open; files that a killed learner left in it are removed before the first."""

    def __init__(self, path: Path | None) -> None:
        """None = actors send everything."""
        self._path = path
        self._streams = 0
        self._lock: int | None = None
        self._failed = False

    def open(self) -> "UploadFiles | None":
        """The files of a new stream; None if there are none for it, while those of other streams go on."""
        if self._path is None:
            return None
        try:
            self._claim(self._path)
            files = UploadFiles(self._path / secrets.token_hex(16))
        except OSError as error:
            # It may pass, as when descriptors have run out; each later stream tries again.
            (log.debug if self._failed else log.warning)("no_upload_files", path=str(self._path), error=str(error))
            self._failed = True
            self._leave()
            return None
        self._failed = False
        self._streams += 1
        return files

    def close(self, files: "UploadFiles | None") -> None:
        """Removes the files of a stream that has ended, and with the last one the folder."""
        if files is None:
            return
        files.close()
        self._streams -= 1
        self._leave()

    def _claim(self, path: Path) -> None:
        """Makes and locks the folder unless this was done; OSError if it cannot be used."""
        if not make_private(path):
            raise PermissionError(f"{path} must be a folder that this user alone may use")
        if self._lock is not None:
            if os.path.samestat(os.fstat(self._lock), os.lstat(path)):
                return
            os.close(self._lock)  # somebody removed it
            self._lock = None
        self._lock = _locked(path)
        _clear(path)

    def _leave(self) -> None:
        """Removes the folder if no stream is open."""
        if self._streams or self._path is None or self._lock is None:
            return
        _clear(self._path)
        with suppress(OSError):
            self._path.rmdir()
        os.close(self._lock)
        self._lock = None


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
        """Closes and removes them by the names that they may have: the folder may be full of other streams' files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        path = str(self.path)
        for name in (path, *(file_of(path, number) for number in range(_MOST_FILES))):
            # A folder stays, until the last stream ends.
            with suppress(OSError):
                os.unlink(name)


def unreadable(why: str) -> FailedPrecondition:
    """The actor sends the trajectory itself then."""
    return FailedPrecondition(why, reason=UNREADABLE)


def sweep(place: Path) -> None:
    """Removes the folders that killed learners of this user left there: nobody holds their locks."""
    for folder in place.glob(f"parlmesh-{os.getuid()}-u*"):
        if FOLDER.fullmatch(folder.name) is None or not is_private_folder(folder):
            continue
        try:
            lock = _locked(folder)
        except OSError:
            continue
        try:
            shutil.rmtree(folder, ignore_errors=True)
            log.info("upload_folder_swept", folder=str(folder))
        finally:
            os.close(lock)


def _locked(folder: Path) -> int:
    """The folder's descriptor, which holds its lock until it is closed or this process ends; OSError if another process
    has the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _clear(folder: Path) -> None:
    with suppress(OSError):
        for file in folder.iterdir():
            if file.is_dir() and not file.is_symlink():
                shutil.rmtree(file, ignore_errors=True)
            else:
                file.unlink(missing_ok=True)
