"""The event loop of every process and thread in a fleet: uvloop if it is installed."""

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop factory for `asyncio.Runner`; None = asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
