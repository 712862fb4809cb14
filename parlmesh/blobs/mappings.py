"""Files that this process has mapped, and how many arrays may use them. They stay mapped for a while, even when a file
becomes another blob: mapping pages takes longer than reading them."""

import ctypes
import mmap
import os
import resource
from collections import OrderedDict
from pathlib import Path

import numpy as np

# All pages are used, so map them all at once instead of a few at every page fault.
_AT_ONCE = getattr(mmap, "MAP_POPULATE", 0)
_PLACE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
_MOST_FILES = 64
# Limits the arrays that this process maps, over all folders: each holds a descriptor, and other code needs some too.
# Further arrays are copied.
_HELD_SHARE = 0.5
_MOST_HELD = 10_000
# MAP_FIXED: the same number on Linux, macOS and the BSDs; Python has no name for it.
_FIXED = 0x10
_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class Mapping(mmap.mmap):
    """The bytes of one file. Without a lock they may change or disappear.

    Unlike Python's own mapping of a file, it has no descriptor: a process has few.
    """

    inode = 0
    name = ""
    """The blob that the file contained when it was last read."""
    written_ns = 0
    """When that blob was written."""

    @classmethod
    def of(cls, descriptor: int, size: int, prot: int, flags: int) -> "Mapping":
        # Python frees this empty memory once it is unused; the file is mapped in its place.
        mapping = cls(-1, size, flags=_PLACE, prot=prot)
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        if _mmap(address, size, prot, mmap.MAP_SHARED | _FIXED | flags, descriptor, 0) != address:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return mapping


def most_held() -> int:
    """Most arrays that this process may map instead of copying them."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_HELD if allowed == resource.RLIM_INFINITY else min(_MOST_HELD, int(allowed * _HELD_SHARE))


class Mappings:
    """The most recently used mappings, by inode: no other file gets the number of a mapped one. The caller locks."""

    def __init__(self, most_bytes: int, prot: int) -> None:
        self._most_bytes = most_bytes
        self._prot = prot
        self._kept: OrderedDict[int, Mapping] = OrderedDict()
        self._bytes = 0
        self.removed: list[int] = []
        """Inodes of removed files; they can be added without the lock, and the next call drops them."""

    def __contains__(self, inode: object) -> bool:
        return inode in self._kept

    def of(self, file: Path, found: os.stat_result, *, at_once: bool = True) -> Mapping:
        """The mapping of the file that `found` describes; FileNotFoundError when another has taken its place."""
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
        """Drops removed files; their memory is freed as soon as no array shows it."""
        while self.removed:
            mapping = self._kept.pop(self.removed.pop(), None)
            if mapping is not None:
                self._bytes -= len(mapping)

    def _mapped(self, file: Path, found: os.stat_result, at_once: bool) -> Mapping:
        access = os.O_RDWR if self._prot & mmap.PROT_WRITE else os.O_RDONLY
        # Do not use the descriptor that holds a lock: a mapping keeps its file open, and with it the lock.
        descriptor = os.open(file, access | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_ino != found.st_ino:
                raise FileNotFoundError(file)
            mapping = Mapping.of(descriptor, found.st_size, self._prot, _AT_ONCE if at_once else 0)
        finally:
            os.close(descriptor)
        mapping.inode = found.st_ino
        return mapping
