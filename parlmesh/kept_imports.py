"""Imports at process start: they live until the end, so garbage collection can skip them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_imports() -> Iterator[None]:
    """Wraps the imports of a binary: saves a tenth of its start-up time, and later collections skip these objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
