"""Files of removed blobs, kept to be overwritten: they already have their memory, and new memory costs more than
writing does.

A reader of a blob holds a shared lock on its file; a writer of a spare needs the exclusive lock. A spare does not have
a blob name, and is taken by a rename that only one process can win.
"""

import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

SPARES = ".spares"
# Spares to try among those that fit; the first ones are often still in use, by readers that have just started.
_TRIES = 8
# A spare this many times larger than needed is left for something larger.
_TOO_LARGE = 2
_PRIVATE = re.compile(r"\.[0-9a-f]{16}")
_NAME = re.compile(r"\d{15}-\d+-\d+")


@dataclass(frozen=True, slots=True)
class Spare:
    """A file of the stock, described by its name."""

    name: str
    since: float
    """When it was added, by the clock of the stock's owner."""
    size: int
    inode: int

    @classmethod
    def named(cls, name: str) -> "Spare":
        milliseconds, size, inode = map(int, name.split("-"))
        return cls(name, milliseconds / 1000, size, inode)


class Spares:
    """The spares of one folder, for all its processes; none until a process opens the stock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / SPARES

    def open(self) -> None:
        """Starts a stock, and removes the spares of an earlier process."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        self.clear()

    def close(self) -> None:
        """Removes the stock, including spares added in the meantime."""
        self.clear()
        with suppress(OSError):
            self._path.rmdir()

    def clear(self) -> bool:
        """Removes all spares; returns whether there were any."""
        spares = self.all()
        for spare in spares:
            self.discard(spare)
        return bool(spares)

    def all(self) -> list[Spare]:
        """All spares, oldest first."""
        return [Spare.named(name) for name in self._names()]

    def add(self, file: Path, now: float) -> int:
        """Turns a blob's file into a spare, which removes the blob; returns how many bytes are kept."""
        found = os.lstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            file.unlink()  # it has a second name, whose owner wants to keep the bytes
            return 0
        file.rename(self._path / f"{int(now * 1000):015d}-{found.st_size}-{found.st_ino}")
        return found.st_size

    def remove(self, file: Path) -> None:
        """Removes a blob's file. Frees its memory even if processes have it mapped, unless one is reading it."""
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            file.unlink(missing_ok=True)
            return
        try:
            emptied = os.fstat(descriptor).st_nlink == 1 and _is_locked(descriptor)
            # Unlink first: the next process to lock it finds no blob of this name.
            file.unlink(missing_ok=True)
            if emptied:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def take(self, size: int, file: Path, mapped: Container[int]) -> int | None:
        """Turns a spare without readers into a file of that size; its locked descriptor, or None if there is none.

        Its bytes are unchanged. `mapped`: inodes to prefer.
        """
        for spare in islice(self._fitting(size, mapped), _TRIES):
            descriptor = self._taken(spare, file)
            if descriptor is not None:
                # Never grow it: writing to a page that cannot be allocated kills the process.
                os.ftruncate(descriptor, size)
                now = time.time_ns()
                os.utime(descriptor, ns=(now, now))
                return descriptor
        return None

    def discard(self, spare: Spare) -> None:
        """Removes a spare. Frees its memory immediately even if processes have it mapped, unless one is reading it."""
        file = private_file(self._folder)
        descriptor = self._taken(spare, file)
        if descriptor is not None:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)
        else:
            file = self._path / spare.name
        file.unlink(missing_ok=True)

    def _names(self) -> list[str]:
        try:
            return sorted(filter(_NAME.fullmatch, os.listdir(self._path)))
        except FileNotFoundError:
            return []

    def _fitting(self, size: int, mapped: Container[int]) -> Iterator[Spare]:
        """Spares of about this size, newest first: their bytes are likelier to be in the processor's caches."""
        others = []
        for spare in map(Spare.named, reversed(self._names())):
            if size <= spare.size <= _TOO_LARGE * size:
                if spare.inode in mapped:
                    yield spare
                else:
                    others.append(spare)
        yield from others

    def _taken(self, spare: Spare, file: Path) -> int | None:
        """Takes a spare out of the stock, then locks it: in the stock it might become a blob first, and readers of that
        would fail."""
        try:
            os.rename(self._path / spare.name, file)
        except FileNotFoundError:
            return None
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not _is_locked(descriptor):
            os.close(descriptor)
            self._put_back(file, spare)
            return None
        return descriptor

    def _put_back(self, file: Path, spare: Spare) -> None:
        try:
            os.rename(file, self._path / spare.name)
        except FileNotFoundError:  # the stock was closed in the meantime
            file.unlink(missing_ok=True)


def _is_locked(descriptor: int) -> bool:
    """Locks the file; False if a process is reading it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def private_file(folder: Path) -> Path:
    """A file name that no blob has; files that killed writers leave under such names are swept."""
    return folder / f".{secrets.token_hex(8)}"


def private_files(folder: Path) -> list[Path]:
    """The files that writers are using or have left there."""
    return [folder / name for name in os.listdir(folder) if is_private(name)]


def is_private(name: str) -> bool:
    """Whether a name is one of `private_file`."""
    return _PRIVATE.fullmatch(name) is not None


def is_left(file: Path) -> bool:
    """Whether a private file was left by its writer, who would otherwise hold its lock."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
