"""Makes sure that a store's files belong to this process alone, and are still those that it opened."""

import fcntl
import os
from pathlib import Path

from parlmesh.errors import FailedPrecondition


class Custody:
    """Locks the database file itself, so that deleting the lock file admits no other process; the lock file says which
    process has the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[int] = []
        # (device and file number, size) of each file that may only grow.
        self._seen: dict[Path, tuple[tuple[int, int], int]] = {}

    def take_name(self) -> None:
        """Locks the lock file, which also keeps out a process that would create the database."""
        lock = self._lock(self._path.with_name(self._path.name + ".lock"))
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())

    def take_file(self) -> None:
        """Locks the database. The descriptor stays open until the end: closing one drops SQLite's own locks."""
        self._lock(self._path)

    def watch(self) -> None:
        """Remembers the database and its log, so that `check` can compare them."""
        for path in (self._path, self._path.with_name(self._path.name + "-wal")):
            found = path.stat()
            self._seen[path] = ((found.st_dev, found.st_ino), found.st_size)

    def check(self) -> None:
        """OSError if a file was deleted, replaced or truncated: anything written to it would be lost."""
        for path, (number, size) in self._seen.items():
            try:
                found = os.stat(path)
            except FileNotFoundError:
                raise OSError(f"{path} is gone; it was deleted or moved while the scheduler ran") from None
            if (found.st_dev, found.st_ino) != number:
                raise OSError(f"{path} was replaced while the scheduler ran")
            if found.st_size < size:
                raise OSError(f"{path} has {found.st_size} bytes and had {size}; it was cut while the scheduler ran")
            if found.st_size > size:
                self._seen[path] = (number, found.st_size)

    def release(self) -> None:
        self._seen.clear()
        while self._files:
            os.close(self._files.pop())

    def _lock(self, path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise FailedPrecondition(
                f"{self._path} is in use by another scheduler; stop it or choose another store.path",
                reason="STORE_IN_USE",
            ) from None
        self._files.append(file)
        return file
