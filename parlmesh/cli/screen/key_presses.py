"""Reads single key presses if stdin is a terminal; Ctrl-C still interrupts."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def pressed(take: Callable[[str], None]) -> Iterator[None]:
    """Passes every key to `take` until the block ends, then restores the terminal."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(descriptor, 64).decode(errors="ignore"):
            take(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
