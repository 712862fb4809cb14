"""What the learner's streams share."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from parlmesh.errors import Unavailable

CHUNK_BYTES = 1 << 20
"""Most data in one message of a stream."""

T = TypeVar("T")


async def unless(stopping: asyncio.Event, waiting: Awaitable[T]) -> T:
    """The awaited value, or Unavailable as soon as the server stops: a drain must not wait for streams without end."""
    wanted, end = asyncio.ensure_future(waiting), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((wanted, end), return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        raise Unavailable("the learner is stopping", reason="STOPPING")
    finally:
        wanted.cancel()
        end.cancel()
