"""A folder of blobs, one file each. The processes of one host share it, and with it the memory of its files."""

import errno
import fcntl
import mmap
import os
import stat
import threading
import time
from collections import OrderedDict
from pathlib import Path
from weakref import finalize

import numpy as np

from parlmesh.errors import FleetError, InvalidInput, NotFound, ResourceExhausted
from parlmesh.types import Array

from .free_space import is_full
from .mappings import Mapping, Mappings, most_held
from .references import MARK, check_name, digest_of
from .spares import Spares, private_file

_WRITE_BYTES = 1 << 30
_MAPPED_BYTES = 256 << 20
_MOST_WRITTEN = 10_000
_TRIES = 8
_TOO_MANY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# The descriptors that hold the locks of mapped arrays.
_held: set[int] = set()


class BlobFolder:
    """Writes whole files or nothing; checks bytes against the name once when they are read, and keeps them mapped for a
    while."""

    def __init__(self, path: Path, mapped_bytes: int = _MAPPED_BYTES) -> None:
        self.path = path
        self._spares = Spares(path)
        self._read = Mappings(mapped_bytes, mmap.PROT_READ)
        self._overwritten = Mappings(mapped_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        # Names of the blobs that this process wrote; the oldest are forgotten first.
        self._written: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def file(self, name: str) -> Path:
        return self.path / name.removeprefix(MARK)

    def size(self, name: str) -> int:
        """Size of a blob in bytes; -1 when there is none, or something else in its place."""
        try:
            found = os.lstat(self.file(name))
        except OSError:
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else -1

    def write(self, name: str, data: memoryview) -> None:
        """Writes a blob, unless it is already there."""
        if self.size(name) == len(data) and self.touch(name):
            return
        try:
            self._write(name, data)
        except OSError as error:
            # Spares may take up all the room, and none of them fits this size.
            if not is_full(error) or not self._spares.clear():
                raise
            self._write(name, data)
        with self._lock:
            self._written[name] = None
            if len(self._written) > _MOST_WRITTEN:
                self._written.popitem(last=False)

    def read(self, name: str, size: int) -> Array:
        """The blob's bytes, read-only. They stay the same when the blob is removed."""
        _, digest = check_name(name)
        descriptor = self._locked(name)
        try:
            with self._lock:
                mapping = self._mapped(name, size, digest, os.fstat(descriptor))
            array = np.frombuffer(mapping, np.uint8)
            if len(_held) >= most_held():
                array = array.copy()
                array.flags.writeable = False
        except BaseException:
            os.close(descriptor)
            raise
        if array.base is None:
            os.close(descriptor)
        else:
            # Every array made from this one holds it. Close rather than unlock: a forked process may use it for longer.
            _held.add(descriptor)
            finalize(array, self._let_go, descriptor).atexit = False
        return array

    def _let_go(self, descriptor: int) -> None:
        """Unlocks a blob once no array uses it, and unmaps a removed file, which will not be read again."""
        found = os.fstat(descriptor)
        _held.discard(descriptor)
        os.close(descriptor)
        if not found.st_nlink:
            self._read.removed.append(found.st_ino)
            # This may be called at any point, even in a thread that holds the lock.
            if self._lock.acquire(blocking=False):
                try:
                    self._read.drop_removed()
                finally:
                    self._lock.release()

    def touch(self, name: str) -> bool:
        """Marks the blob as used. Keeps its modification time: by it, readers recognise bytes they have checked."""
        file = self.file(name)
        try:
            os.utime(file, ns=(time.time_ns(), os.lstat(file).st_mtime_ns), follow_symlinks=False)
        except OSError:
            return False
        return True

    def remove(self, name: str) -> None:
        self.file(name).unlink(missing_ok=True)

    def _write(self, name: str, data: memoryview) -> None:
        temporary = private_file(self.path)
        try:
            if not self._overwrite(temporary, data):
                _write_new(temporary, data)
            temporary.rename(self.file(name))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _overwrite(self, temporary: Path, data: memoryview) -> bool:
        """Overwrites a spare; False when there is none of about this size."""
        descriptor = self._spares.take(len(data), temporary, self._overwritten)
        if descriptor is None:
            return False
        try:
            with self._lock:
                mapping = self._overwritten.of(temporary, os.fstat(descriptor))
            np.copyto(np.frombuffer(mapping, np.uint8), np.frombuffer(data, np.uint8))
        finally:
            # Unlock before the file gets its name: readers must find a blob unlocked. Closing alone would not unlock
            # it, because a process forked in the meantime also has the descriptor.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        return True

    def _locked(self, name: str) -> int:
        """A descriptor of the blob's file. Until it is closed, no process writes to the file."""
        file = self.file(name)
        for _ in range(_TRIES):
            try:
                # A pipe in its place would be waited for until somebody writes to it.
                descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                raise _unread(name, error) from None
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise _gone(name)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                # The file may have become another blob before the lock; then the name no longer exists or is another
                # file's.
                if os.path.samestat(os.fstat(descriptor), os.lstat(file)):
                    return descriptor
            except OSError:
                pass
            os.close(descriptor)
        raise _gone(name)

    def _mapped(self, name: str, size: int, digest: str, found: os.stat_result) -> Mapping:
        if found.st_size != size:
            raise InvalidInput(f"{name} has {found.st_size} bytes, but {size} were requested", reason="BLOB_SIZE")
        # This process's own bytes need no check: no other process writes under their name.
        own = name in self._written
        try:
            mapping = self._read.of(self.file(name), found, at_once=not own)
        except OSError as error:
            raise _unread(name, error) from None
        if (mapping.name, mapping.written_ns) != (name, found.st_mtime_ns):
            if not own and digest_of(memoryview(mapping)) != digest:
                raise InvalidInput(f"the bytes of {name} do not match its digest", reason="BLOB_CORRUPT")
            mapping.name, mapping.written_ns = name, found.st_mtime_ns
        return mapping


def _write_new(file: Path, data: memoryview) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        # The lock tells a file that is being written from one that a killed writer left.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written : written + _WRITE_BYTES])
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _unread(name: str, error: OSError) -> FleetError:
    if error.errno in _TOO_MANY:
        text = f"{name} cannot be mapped: {error.strerror}; hold fewer arrays, or raise this process's limits (ulimit)"
        return ResourceExhausted(text, reason="BLOB_NOT_MAPPED", retry_after_seconds=1.0, blob=name)
    return _gone(name)


def _gone(name: str) -> NotFound:
    return NotFound(f"{name} is no longer kept", reason="BLOB_GONE", blob=name)


def name_behind(array: Array) -> str:
    """The blob that an array shows whole and unchanged; empty when it shows something else."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, Mapping) and array.nbytes == len(base) and array.flags.c_contiguous:
        return base.name
    return ""
