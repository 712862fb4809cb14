"""How the scheduler's process looks for garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def calm_collector() -> None:
    """A million queued tasks form no cycles, and looking through all of them would stop every stream for a second.

    Young objects are still looked at; the old ones are left alone.
    """
    gc.set_threshold(10_000, 20, 1_000_000)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Where very much is built at once and nothing is thrown away."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_present() -> None:
    """What is there now stays: the modules, and the tasks that were rebuilt."""
    gc.freeze()
