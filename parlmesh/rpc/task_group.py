"""Coroutines that run and end together."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Returns when all have ended. When one fails, the others are cancelled and the errors are raised as a group.

    For a task that continues after a failure. A bare task group harms such a task before Python 3.13 (cpython
    gh-116720). A group that fails while its block is being left does not take back the cancellation that woke the task,
    so that a later `asyncio.timeout` raises CancelledError instead of TimeoutError. And a failure swallows a
    cancellation from outside that comes with it, so that a cancelled loop would try again.
    """
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    try:
        async with asyncio.TaskGroup() as group:
            members = [group.create_task(coroutine) for coroutine in coroutines]
            # Waited for inside the block: for a task that is still inside, the group takes its cancellation back.
            await asyncio.wait(members)
    except BaseExceptionGroup:
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError from None
        raise


async def first_of(*awaitables: Awaitable[T]) -> T:
    """The result of the one that ends first, or of the first named when several do; the others are cancelled and have
    ended when this returns."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, at most for the given seconds; whether it is set by then."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def being_cancelled() -> bool:
    """Tells a cancelled task from a cancelled call: grpc raises the same error in both cases."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
