"""Files that this process has mapped. They stay mapped for a while, whatever blob a file is by then: to map pages takes
longer than to read them."""

import ctypes
import mmap
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np

# All pages are used: one fault for all of them instead of one for a few.
_AT_ONCE = getattr(mmap, "MAP_POPULATE", 0)
_PLACE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
_MOST_FILES = 64
# The same number on Linux, macOS and the BSDs; Python has no name for it.
_FIXED = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class Mapping(mmap.mmap):
    """The bytes of one file. Without a lock they may change, and be gone.

    It has no descriptor, as Python's own mapping of a file has: processes have few.
    """

    inode = 0
    name = ""
    """The blob that the file was when it was last read."""
    written_ns = 0
    """When that blob was written."""

    @classmethod
    def of(cls, descriptor: int, size: int, prot: int, flags: int) -> "Mapping":
        # Empty memory, which Python gives back when nobody uses it any more; the file is put in its place.
        mapping = cls(-1, size, flags=_PLACE, prot=prot)
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        if _mmap(address, size, prot, mmap.MAP_SHARED | _FIXED | flags, descriptor, 0) != address:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return mapping


class Mappings:
    """The last ones used, by inode: as long as a file is mapped, no other gets its number. The caller locks."""

    def __init__(self, most_bytes: int, prot: int) -> None:
        self._most_bytes = most_bytes
        self._prot = prot
        self._kept: OrderedDict[int, Mapping] = OrderedDict()
        self._bytes = 0
        self.removed: list[int] = []
        """Files that are gone; whoever has no lock says so here, and the next call drops them."""

    def __contains__(self, inode: object) -> bool:
        return inode in self._kept

    def of(self, file: Path, found: os.stat_result, *, at_once: bool = True) -> Mapping:
        """The file that was found there; FileNotFoundError when it is another by now."""
        self.drop_removed()
        mapping = self._kept.pop(found.st_ino, None)
        if mapping is not None:
            self._bytes -= len(mapping)
        if mapping is None or len(mapping) != found.st_size:
            mapping = self._mapped(file, found, at_once)
        if len(mapping) <= self._most_bytes:
            self._kept[found.st_ino] = mapping
            self._bytes += len(mapping)
        while self._bytes > self._most_bytes or len(self._kept) > _MOST_FILES:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)
        return mapping

    def drop_removed(self) -> None:
        """Their memory is given back, as soon as no array shows it."""
        while self.removed:
            mapping = self._kept.pop(self.removed.pop(), None)
            if mapping is not None:
                self._bytes -= len(mapping)

    def _mapped(self, file: Path, found: os.stat_result, at_once: bool) -> Mapping:
        access = os.O_RDWR if self._prot & mmap.PROT_WRITE else os.O_RDONLY
        # Not the descriptor that holds a lock: the system keeps what was opened for as long as it is mapped, and with
        # it the lock.
        descriptor = os.open(file, access | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_ino != found.st_ino:
                raise FileNotFoundError(file)
            mapping = Mapping.of(descriptor, found.st_size, self._prot, _AT_ONCE if at_once else 0)
        finally:
            os.close(descriptor)
        mapping.inode = found.st_ino
        return mapping
