"""How the learner's streams end when the server stops."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from parlmesh.errors import Unavailable
from parlmesh.rpc.task_group import first_of

T = TypeVar("T")


async def unless(stopping: asyncio.Event, waiting: Awaitable[T]) -> T:
    """The awaited value, or Unavailable as soon as the server stops: a drain must not wait for streams without end."""

    async def stopped() -> T:
        await stopping.wait()
        raise Unavailable("the learner is stopping", reason="STOPPING")

    return await first_of(waiting, stopped())
