"""A folder of blobs, one file each. Processes of one host share it, and with it the memory that the files are."""

import fcntl
import mmap
import os
import stat
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path
from weakref import finalize

import numpy as np

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.types import Array

from .mappings import Mapping, Mappings
from .references import MARK, check_name, digest_of
from .spares import Spares, private_file

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of one's own are made in it
# A container's usual 64 MiB hold no arrays worth the name.
_LEAST_SHARED_BYTES = 1 << 30
_USABLE = 0.8
_WRITE_BYTES = 1 << 30
_MAPPED_BYTES = 256 << 20
_MOST_WRITTEN = 10_000
# Arrays that are looked at together as they are, each with a descriptor; a process often has 1,024. Others are copied.
_MOST_HELD = 256
_TRIES = 8


def place_for_blobs() -> Path:
    """Shared memory, or the folder of temporary files where there is little of it."""
    if _SHARED_MEMORY.is_dir() and usable_bytes(_SHARED_MEMORY) >= _USABLE * _LEAST_SHARED_BYTES:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def usable_bytes(folder: Path) -> int:
    """As much of its file system as blobs may take."""
    found = os.statvfs(folder)
    return int(found.f_blocks * found.f_frsize * _USABLE)


def is_shared_memory(folder: Path) -> bool:
    """Whether its files are memory: there, pages that were written once can be written again without fail."""
    return _SHARED_MEMORY.is_dir() and folder.stat().st_dev == _SHARED_MEMORY.stat().st_dev


class BlobFolder:
    """Writes whole files or nothing; what is read is checked against its name once, and stays mapped for a while."""

    def __init__(self, path: Path, mapped_bytes: int = _MAPPED_BYTES) -> None:
        self.path = path
        self._spares = Spares(path)
        self._read = Mappings(mapped_bytes, mmap.PROT_READ)
        self._overwritten = Mappings(mapped_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        # Names of what this process wrote itself; the oldest are forgotten first.
        self._written: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        # Descriptors that hold the locks of arrays that are looked at.
        self._held: set[int] = set()

    def file(self, name: str) -> Path:
        return self.path / name.removeprefix(MARK)

    def size(self, name: str) -> int:
        """Bytes of a blob; -1 when there is none, or something else in its place."""
        try:
            found = os.lstat(self.file(name))
        except OSError:
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else -1

    def write(self, name: str, data: memoryview) -> None:
        """Nothing happens when it is there already."""
        if self.size(name) == len(data):
            return
        temporary = private_file(self.path)
        try:
            if not self._overwrite(temporary, data):
                _write_new(temporary, data)
            temporary.rename(self.file(name))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        with self._lock:
            self._written[name] = None
            if len(self._written) > _MOST_WRITTEN:
                self._written.popitem(last=False)

    def read(self, name: str, size: int) -> Array:
        """Its bytes, read-only. They stay what they are when the blob is removed."""
        _, digest = check_name(name)
        descriptor = self._locked(name)
        try:
            with self._lock:
                mapping = self._mapped(name, size, digest, os.fstat(descriptor))
            array = np.frombuffer(mapping, np.uint8)
            if len(self._held) >= _MOST_HELD:
                array = array.copy()
                array.flags.writeable = False
        except BaseException:
            os.close(descriptor)
            raise
        if array.base is None:
            os.close(descriptor)
        else:
            # Every array made of this one holds it. Closing, not unlocking: a forked process looks at it for longer.
            self._held.add(descriptor)
            finalize(array, _let_go, self._held, descriptor).atexit = False
        return array

    def remove(self, name: str) -> None:
        self.file(name).unlink(missing_ok=True)

    def _overwrite(self, temporary: Path, data: memoryview) -> bool:
        """Writes to a spare; False when there is none of about this size."""
        descriptor = self._spares.take(len(data), temporary, self._overwritten)
        if descriptor is None:
            return False
        try:
            with self._lock:
                mapping = self._overwritten.of(temporary, os.fstat(descriptor))
            np.copyto(np.frombuffer(mapping, np.uint8), np.frombuffer(data, np.uint8))
        finally:
            # The lock ends before the file has a name: whoever reads a blob must find it unlocked. A process forked
            # meanwhile has the descriptor too, so that closing alone would not end it.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        return True

    def _locked(self, name: str) -> int:
        """A descriptor of the blob's file. Until it is closed, nobody writes there."""
        file = self.file(name)
        for _ in range(_TRIES):
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                break
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                # It may have become another blob before the lock; then the name is gone, or another file's.
                if os.path.samestat(os.fstat(descriptor), os.lstat(file)):
                    return descriptor
            except OSError:
                pass
            os.close(descriptor)
        raise _gone(name)

    def _mapped(self, name: str, size: int, digest: str, found: os.stat_result) -> Mapping:
        if found.st_size != size:
            raise InvalidInput(f"{name} has {found.st_size} bytes, and {size} are asked for", reason="BLOB_SIZE")
        # Bytes of one's own come back unread: nobody else writes under their name.
        own = name in self._written
        try:
            mapping = self._read.of(self.file(name), found, at_once=not own)
        except FileNotFoundError:
            raise _gone(name) from None
        if (mapping.name, mapping.written_ns) != (name, found.st_mtime_ns):
            if not own and digest_of(memoryview(mapping)) != digest:
                raise InvalidInput(f"the bytes of {name} are not those of its digest", reason="BLOB_CORRUPT")
            mapping.name, mapping.written_ns = name, found.st_mtime_ns
        return mapping


def _write_new(file: Path, data: memoryview) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written : written + _WRITE_BYTES])
    finally:
        os.close(descriptor)


def _let_go(held: set[int], descriptor: int) -> None:
    held.discard(descriptor)
    os.close(descriptor)


def _gone(name: str) -> NotFound:
    return NotFound(f"{name} is not kept any more", reason="BLOB_GONE", blob=name)


def name_behind(array: Array) -> str:
    """The blob that an array shows whole and as it is; empty when it shows something else."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, Mapping) and array.nbytes == len(base) and array.flags.c_contiguous:
        return base.name
    return ""
