"""Files that this process has mapped. They stay mapped for a while, whatever blob a file is by then: to map pages takes
longer than to read them."""

import mmap
import os
from collections import OrderedDict
from pathlib import Path

# All pages are used: one fault for all of them instead of one for a few.
_AT_ONCE = getattr(mmap, "MAP_POPULATE", 0)
_MOST_FILES = 64


class Mapping(mmap.mmap):
    """The bytes of one file. Without a lock they may change, and be gone."""

    inode = 0
    name = ""
    """The blob that the file was when it was last read."""
    written_ns = 0
    """When that blob was written."""


class Mappings:
    """The last ones used, by inode: as long as a file is mapped, no other gets its number. The caller locks."""

    def __init__(self, most_bytes: int, prot: int) -> None:
        self._most_bytes = most_bytes
        self._prot = prot
        self._kept: OrderedDict[int, Mapping] = OrderedDict()
        self._bytes = 0

    def __contains__(self, inode: object) -> bool:
        return inode in self._kept

    def of(self, file: Path, found: os.stat_result, *, at_once: bool = True) -> Mapping:
        """The file that was found there; FileNotFoundError when it is another by now."""
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

    def _mapped(self, file: Path, found: os.stat_result, at_once: bool) -> Mapping:
        access = os.O_RDWR if self._prot & mmap.PROT_WRITE else os.O_RDONLY
        # Not the descriptor that holds a lock: a mapping keeps a copy of its own, and with it the lock.
        descriptor = os.open(file, access | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_ino != found.st_ino:
                raise FileNotFoundError(file)
            flags = mmap.MAP_SHARED | (_AT_ONCE if at_once else 0)
            mapping = Mapping(descriptor, found.st_size, flags=flags, prot=self._prot)
        finally:
            os.close(descriptor)
        mapping.inode = found.st_ino
        return mapping
