"""Ends a process whose event loop stands still: a handler that never yields would block it for good.

The timer is Python's own and needs no turn of the interpreter. It writes where every thread is, then ends the process
with exit code 1; the scheduler has given its tasks to others long before.
"""

import asyncio
import faulthandler

_LOOK_SECONDS = 1.0


async def watch(stall_seconds: float) -> None:
    """Puts the end off for as long as the loop goes round; 0 seconds watch nothing."""
    if not stall_seconds:
        return
    try:
        while True:
            faulthandler.dump_traceback_later(stall_seconds, exit=True)
            await asyncio.sleep(min(_LOOK_SECONDS, stall_seconds / 4))
    finally:
        faulthandler.cancel_dump_traceback_later()
