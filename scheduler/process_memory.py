"""Memory of the process: seldom searched for garbage, kept together, and given back after large messages."""

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
# Less is not worth the milliseconds for which nothing can be allocated.
_WORTH_BYTES = 64 << 20
_STATM = Path("/proc/self/statm")


def relax_garbage_collection() -> None:
    """A million queued tasks form no cycles, and looking through all of them would stop every stream for a second.

    Young objects are still looked at, few at a time, because every stream waits meanwhile; the old ones are left alone.
    """
    gc.set_threshold(2_000, 10, 1_000_000)


def keep_memory_together() -> None:
    """Each thread of gRPC would keep freed memory of its own, and strangers' large messages would cost a quarter more.

    Only glibc has such arenas.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


class Surplus:
    """Notices that the process has grown, and gives back what of it is free: glibc keeps all below what is in use."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], None]) -> None:
        self._resident = resident
        self._trim = trim
        self._least = resident()

    def look(self) -> bool:
        """Whether something was given back, or would have been if it were free."""
        self._least = min(self._least, resident := self._resident())
        if resident < self._least + max(_WORTH_BYTES, self._least // 2):
            return False
        self._trim()
        # What is left is in use: the next look is for what comes on top of it.
        self._least = self._resident()
        return True


async def give_memory_back() -> None:
    """Looks now and then, until cancelled."""
    surplus = Surplus(_resident_bytes, _trim)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.to_thread(surplus.look)


def _resident_bytes() -> int:
    """0 where there is no such file."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _trim() -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Where very much is built at once and nothing is thrown away."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
