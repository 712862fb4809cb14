"""A wait with a deadline that reports where everything was when it expired."""

import asyncio
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def within(seconds: float, tell: Callable[[], object] = str) -> AsyncIterator[None]:
    """Fails after this many seconds with the result of `tell` and the stacks of all threads and tasks."""
    standing = ""

    def look() -> None:
        nonlocal standing
        # Taken before the cancellation changes the stacks.
        standing = f"{tell()}\n{stacks()}"

    looking = asyncio.get_running_loop().call_later(max(0.0, seconds - 0.1), look)
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"not over within {seconds:g} s: {standing}") from None
    finally:
        looking.cancel()


def stacks() -> str:
    """The stack of every thread, and of every task of the running loop."""
    frames = sys._current_frames()
    found = [
        f"thread {thread.name}\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threading.enumerate()
        if thread.ident in frames
    ]
    for task in asyncio.all_tasks():
        where = "".join(line for frame in task.get_stack() for line in traceback.format_stack(frame)[-1:])
        found.append(f"task {task.get_name()}\n{where}")
    return "\n".join(found)
