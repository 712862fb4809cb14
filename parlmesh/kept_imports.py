"""Imports at the start of a process: they stay until its end, so nothing looks for garbage among them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_imports() -> Iterator[None]:
    """Around the imports of a binary: a tenth of its start is saved, and later looks for garbage pass them by."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
