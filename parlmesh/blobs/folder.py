"""A folder of blobs, one file each. Processes of one host share it, and with it the memory that the files are."""

import mmap
import os
import secrets
import stat
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.types import Array

from .references import MARK, check_name, digest_of

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - folders of one's own are made in it
# A container's usual 64 MiB hold no arrays worth the name.
_LEAST_SHARED_BYTES = 1 << 30
_USABLE = 0.8
_WRITE_BYTES = 1 << 30
_MAPPED_BYTES = 256 << 20
_MOST_WRITTEN = 10_000
# The digest reads every page: one fault for all of them instead of one for a few.
_AT_ONCE = getattr(mmap, "MAP_POPULATE", 0)


def place_for_blobs() -> Path:
    """Shared memory, or the folder of temporary files where there is little of it."""
    if _SHARED_MEMORY.is_dir() and usable_bytes(_SHARED_MEMORY) >= _USABLE * _LEAST_SHARED_BYTES:
        return _SHARED_MEMORY
    return Path(tempfile.gettempdir())


def usable_bytes(folder: Path) -> int:
    """As much of its file system as blobs may take."""
    found = os.statvfs(folder)
    return int(found.f_blocks * found.f_frsize * _USABLE)


class _Mapping(mmap.mmap):
    """The bytes of one blob, readable only."""

    name = ""


class BlobFolder:
    """Writes whole files or nothing; what is read is checked against its name once, and stays mapped for a while."""

    def __init__(self, path: Path, mapped_bytes: int = _MAPPED_BYTES) -> None:
        self.path = path
        self._most_mapped = mapped_bytes
        self._mapped: OrderedDict[str, Array] = OrderedDict()
        self._mapped_bytes = 0
        # Names of what this process wrote itself; the oldest are forgotten first.
        self._written: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

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
        temporary = self.path / f".{secrets.token_hex(8)}"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            try:
                written = 0
                while written < len(data):
                    written += os.write(descriptor, data[written : written + _WRITE_BYTES])
            finally:
                os.close(descriptor)
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
        with self._lock:
            mapped = self._mapped.get(name)
            if mapped is None:
                mapped = self._map(name, size)
                self._keep(name, mapped)
        if mapped.nbytes != size:
            raise InvalidInput(f"{name} has {mapped.nbytes} bytes, and {size} are asked for", reason="BLOB_SIZE")
        return mapped

    def remove(self, name: str) -> None:
        self.file(name).unlink(missing_ok=True)

    def _map(self, name: str, size: int) -> Array:
        _, digest = check_name(name)
        try:
            descriptor = os.open(self.file(name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            raise NotFound(f"{name} is not kept any more", reason="BLOB_GONE", blob=name) from None
        try:
            held = os.fstat(descriptor).st_size
            if held != size:
                raise InvalidInput(f"{name} has {held} bytes, and {size} are asked for", reason="BLOB_SIZE")
            # Bytes of one's own come back unread: nobody else writes under their name.
            own = name in self._written
            flags = mmap.MAP_SHARED | (0 if own else _AT_ONCE)
            mapping = _Mapping(descriptor, size, flags=flags, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        mapping.name = name
        array = np.frombuffer(mapping, np.uint8)
        if not own and digest_of(array.data) != digest:
            raise InvalidInput(f"the bytes of {name} are not those of its digest", reason="BLOB_CORRUPT")
        return array

    def _keep(self, name: str, mapped: Array) -> None:
        self._mapped[name] = mapped
        self._mapped_bytes += mapped.nbytes
        while self._mapped_bytes > self._most_mapped and self._mapped:
            _, oldest = self._mapped.popitem(last=False)
            self._mapped_bytes -= oldest.nbytes


def name_behind(array: Array) -> str:
    """The blob that an array shows whole and as it is; empty when it shows something else."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, _Mapping) and array.nbytes == len(base) and array.flags.c_contiguous:
        return base.name
    return ""
