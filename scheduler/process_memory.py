"""The process's memory: rarely searched for garbage, kept in one arena, and given back after large messages."""

import asyncio
import contextlib
import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_M_ARENA_MAX = -8
_LOOK_SECONDS = 10.0
# Less is not worth the milliseconds during which nothing can be allocated.
_WORTH_BYTES = 64 << 20
_STATM = Path("/proc/self/statm")


def relax_garbage_collection() -> None:
    """Excludes old objects from the search for cycles: a million queued tasks form no cycles, and a search stops every
    stream for a second.

    Young objects are still searched, a few at a time, because every stream waits in the meantime.
    """
    gc.set_threshold(2_000, 10, 1_000_000)


def keep_memory_together() -> None:
    """Uses one arena. Otherwise each gRPC thread keeps its own freed memory, and large messages cost a quarter more
    memory.

    Only glibc has arenas.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class Surplus:
    """Notices that the process has grown, and gives back its free memory, which glibc keeps below memory in use."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], None]) -> None:
        self._resident = resident
        self._trim = trim
        self._least = resident()

    def look(self) -> bool:
        """Whether the process had grown enough to give memory back."""
        self._least = min(self._least, resident := self._resident())
        if resident < self._least + max(_WORTH_BYTES, self._least // 2):
            return False
        self._trim()
        # The remaining memory is in use; the next check compares with it.
        self._least = self._resident()
        return True


async def give_memory_back() -> None:
    """Looks every few seconds, until cancelled."""
    surplus = Surplus(_resident_bytes, _trim)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.to_thread(surplus.look)


def _resident_bytes() -> int:
    """0 where there is no /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _trim() -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pauses the collector while many objects are built, none of which become garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
