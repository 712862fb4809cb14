"""Futures of a loop in a thread of its own, as other threads and other loops see them."""

import asyncio
import traceback
from collections.abc import Iterator

import pytest

from parlmesh.client.loop_thread import LoopThread
from parlmesh.errors import Unavailable


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.close()


async def _lost() -> None:
    try:
        raise ExceptionGroup("several", [ValueError("one")])
    except ExceptionGroup:
        raise Unavailable("it is away") from None


def test_an_error_of_the_fleet_has_the_callers_frames_and_no_exception_group(thread: LoopThread) -> None:
    """IPython does not format an error that has a group behind it, even a suppressed one."""
    with pytest.raises(Unavailable, match="it is away") as caught:
        thread.start(_lost()).result(60)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_an_error_of_the_fleet_has_the_callers_frames_and_no_exception_group", "result"]
    assert caught.value.__context__ is None


async def test_a_future_is_awaited_in_another_loop(thread: LoopThread) -> None:
    assert await thread.start(asyncio.sleep(0, "here")) == "here"
