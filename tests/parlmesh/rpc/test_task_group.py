import asyncio
import contextlib

import pytest

from parlmesh.errors import Unavailable
from parlmesh.rpc import set_within, together


async def _breaks() -> None:
    await asyncio.sleep(0)
    raise Unavailable("the stream broke")


async def _ends() -> None:
    await asyncio.sleep(0)


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_it_returns_when_all_have_ended() -> None:
    ended = []

    async def end(name: str) -> None:
        await _ends()
        ended.append(name)

    await together(end("first"), end("second"))
    assert ended == ["first", "second"]


async def test_one_failure_ends_the_others_and_is_raised_in_a_group() -> None:
    cancelled = asyncio.Event()

    async def waits() -> None:
        try:
            await _for_ever()
        finally:
            cancelled.set()

    with pytest.raises(ExceptionGroup) as caught:
        await together(waits(), _breaks())
    assert [type(error) for error in caught.value.exceptions] == [Unavailable]
    assert cancelled.is_set()


@pytest.mark.parametrize("other", [_ends, _for_ever, _breaks])
async def test_a_wait_after_a_failure_times_out_and_is_not_cancelled(other) -> None:
    for _ in range(3):
        with pytest.raises(ExceptionGroup):
            await together(_breaks(), other())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await _for_ever()


async def test_a_timeout_around_a_failure_times_out_and_is_not_cancelled() -> None:
    async def tries_again() -> None:
        with contextlib.suppress(ExceptionGroup):
            await together(_breaks(), _for_ever())
        await _for_ever()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tries_again()


async def test_a_loop_that_is_cancelled_while_its_stream_breaks_does_not_try_again() -> None:
    started, tries = asyncio.Event(), 0

    async def breaks_when_cancelled() -> None:
        started.set()
        try:
            await _for_ever()
        except asyncio.CancelledError:
            raise Unavailable("the stream broke") from None

    async def loop() -> None:
        nonlocal tries
        while not tries:
            with contextlib.suppress(ExceptionGroup):
                await together(breaks_when_cancelled(), _for_ever())
            tries += 1

    task = asyncio.create_task(loop())
    await started.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert tries == 0


async def test_a_loop_that_is_cancelled_just_after_its_stream_broke_does_not_try_again() -> None:
    tries = 0

    async def breaks_and_is_told_to_end() -> None:
        await asyncio.sleep(0)
        task.cancel()
        raise Unavailable("the stream broke")

    async def loop() -> None:
        nonlocal tries
        while not tries:
            with contextlib.suppress(ExceptionGroup):
                await together(breaks_and_is_told_to_end(), _for_ever())
            tries += 1

    task = asyncio.create_task(loop())
    await asyncio.wait({task})
    assert task.cancelled()
    assert tries == 0


async def test_an_event_is_waited_for_no_longer_than_the_given_time() -> None:
    event = asyncio.Event()
    assert not await set_within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await set_within(event, 60.0)
    assert await set_within(event, 0.0)
