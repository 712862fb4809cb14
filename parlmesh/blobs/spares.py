"""Files of removed blobs that wait to be written again: they have their memory already, and new memory costs more
than the writing.

Whoever looks at a blob holds a shared lock on its file, and whoever writes a spare needs the exclusive one. A spare has
no blob's name, and is taken by a rename that only one process can win.
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
# Of those that fit; whoever still looks at the first ones has often only just begun.
_TRIES = 8
# A spare so many times larger than what is asked for is kept for something larger.
_TOO_LARGE = 2
_PRIVATE = re.compile(r"\.[0-9a-f]{16}")
_NAME = re.compile(r"\d{15}-\d+-\d+")


@dataclass(frozen=True, slots=True)
class Spare:
    """A file of the stock; everything but its memory is in its name."""

    name: str
    since: float
    """When it was added, by the clock of whoever keeps the stock."""
    size: int
    inode: int

    @classmethod
    def named(cls, name: str) -> "Spare":
        milliseconds, size, inode = map(int, name.split("-"))
        return cls(name, milliseconds / 1000, size, inode)


class Spares:
    """The stock of one folder, for all its processes. Where nobody has opened one there are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / SPARES

    def open(self) -> None:
        """Begins a stock; what an earlier life left is removed."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        self.clear()

    def close(self) -> None:
        """Removes all of it, whatever is added meanwhile."""
        self.clear()
        with suppress(OSError):
            self._path.rmdir()

    def clear(self) -> bool:
        """Whether there was any."""
        spares = self.all()
        for spare in spares:
            self.discard(spare)
        return bool(spares)

    def all(self) -> list[Spare]:
        """The oldest first."""
        return [Spare.named(name) for name in self._names()]

    def add(self, file: Path, now: float) -> int:
        """The file of a blob, which is gone from now on; how many bytes are kept of it."""
        found = os.lstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            file.unlink()  # whoever gave it another name wants to keep what is in it
            return 0
        file.rename(self._path / f"{int(now * 1000):015d}-{found.st_size}-{found.st_ino}")
        return found.st_size

    def remove(self, file: Path) -> None:
        """The same, and nothing is kept. Its memory goes although processes have it mapped, unless somebody looks."""
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            file.unlink(missing_ok=True)
            return
        try:
            emptied = os.fstat(descriptor).st_nlink == 1 and _is_locked(descriptor)
            # First: who locks it next finds no blob of this name.
            file.unlink(missing_ok=True)
            if emptied:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def take(self, size: int, file: Path, mapped: Container[int]) -> int | None:
        """Makes a spare a file of that size, which nobody looks at: its descriptor, which holds the lock; or None.

        Its bytes are what they were. `mapped`: inodes that are the best to get.
        """
        for spare in islice(self._fitting(size, mapped), _TRIES):
            descriptor = self._taken(spare, file)
            if descriptor is not None:
                # It never grows: a page that cannot be had would end the process that writes to it.
                os.ftruncate(descriptor, size)
                now = time.time_ns()
                os.utime(descriptor, ns=(now, now))
                return descriptor
        return None

    def discard(self, spare: Spare) -> None:
        """Gives its memory back at once, although processes may have it mapped; not of one that somebody looks at."""
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
        """The newest first: their bytes are likelier to be in the processor's caches."""
        others = []
        for spare in map(Spare.named, reversed(self._names())):
            if size <= spare.size <= _TOO_LARGE * size:
                if spare.inode in mapped:
                    yield spare
                else:
                    others.append(spare)
        yield from others

    def _taken(self, spare: Spare, file: Path) -> int | None:
        """Nobody locks what is still in the stock: that could be a blob again by now, and its readers would fail."""
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
        except FileNotFoundError:  # the stock was closed meanwhile
            file.unlink(missing_ok=True)


def _is_locked(descriptor: int) -> bool:
    """Whether nobody looks at it, and nobody can from now on."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def private_file(folder: Path) -> Path:
    """A name that is no blob's; what a killed writer leaves under it is swept."""
    return folder / f".{secrets.token_hex(8)}"


def private_files(folder: Path) -> list[Path]:
    """What writers have there at this moment, or left."""
    return [folder / name for name in os.listdir(folder) if is_private(name)]


def is_private(name: str) -> bool:
    """Whether it is a name that `private_file` gives."""
    return _PRIVATE.fullmatch(name) is not None


def is_left(file: Path) -> bool:
    """Whether nobody writes a private file any more: whoever does holds its lock."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
