"""The C heap of a process whose messages are large and short-lived."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Free memory at the end of the heap that the process keeps, and the smallest block that gets its own mapping.
_KEPT_BYTES = 64 << 20
_MAPPED_BYTES = 8 << 20


def keep_freed_memory() -> None:
    """Reuses the memory of freed messages. Otherwise glibc returns it to the system after each batch, and a fifth of
    the time for a trajectory is spent faulting the same pages in again.

    Only glibc has these settings.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
