import asyncio

import pytest

from parlmesh.testing import within


async def test_a_wait_that_does_not_end_says_where_everything_stands():
    async def waits_for_nothing():
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match=r"not over within 0\.2 s: the queue is empty") as caught:
        async with within(0.2, lambda: "the queue is empty"):
            await asyncio.create_task(waits_for_nothing())
    assert "waits_for_nothing" in str(caught.value)
    assert "thread MainThread" in str(caught.value)


async def test_a_wait_that_ends_is_left_alone_and_an_error_in_it_stays_its_own():
    async with within(60):
        pass
    with pytest.raises(TimeoutError, match="mine"):
        async with within(60):
            raise TimeoutError("mine")
