import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.client import Outcome, TaskRequest
from parlmesh.client.connection.pending_outcomes import Sink
from parlmesh.client.feed import lent
from parlmesh.client.map_and_gather import Window
from parlmesh.client.task_request import owned
from parlmesh.testing import wait_until_async
from parlmesh.v1 import task_pb2 as pb

FAR = 1e12


class Fleet:
    """Ends what is submitted in the order a seed gives."""

    def __init__(self) -> None:
        self.unfinished: list[int] = []
        self.most = 0
        self.batches: list[int] = []
        self.written = asyncio.Semaphore(0)
        """Slices of large arrays."""

    def each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
        indices = [index for index, _ in requests]
        self.unfinished += indices
        self.batches.append(len(indices))
        self.most = max(self.most, len(self.unfinished))

    async def each_large(self, requests: Sequence[tuple[int, TaskRequest]], sink: Sink) -> None:
        await self.written.acquire()
        self.each(requests, sink)

    def end(self, sink: Sink, index: int) -> None:
        self.unfinished.remove(index)
        sink.settle([Outcome(f"t{index}", index, pb.Outcome(state=pb.TASK_STATE_SUCCEEDED))])


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 20), st.randoms(use_true_random=False))
def test_every_task_ends_once_and_never_more_than_the_limit_are_out(
    count: int, limit: int, ends_at_once: int, rng: random.Random
) -> None:
    fleet = Fleet()
    window = Window(fleet, enumerate([TaskRequest("noop")] * count), limit, FAR)

    async def run() -> list[int]:
        seen: list[int] = []
        while True:
            taking = asyncio.ensure_future(window.take())
            await asyncio.sleep(0)
            for _ in range(min(ends_at_once, len(fleet.unfinished))):
                fleet.end(window, rng.choice(fleet.unfinished))
            batch = await taking
            if not batch:
                return seen
            seen += [outcome.index for outcome in batch]
            window.release(len(batch))

    assert sorted(asyncio.run(run())) == list(range(count))
    assert fleet.most <= limit
    assert fleet.most == min(count, limit)


async def test_a_straggler_holds_up_nothing_but_itself() -> None:
    fleet = Fleet()
    window = Window(fleet, enumerate([TaskRequest("noop")] * 9), 3, FAR)
    ended = 0
    while fleet.unfinished != [0] or ended < 8:
        taking = asyncio.ensure_future(window.take())
        await asyncio.sleep(0)
        fleet.end(window, fleet.unfinished[-1])
        ended += len(await taking)
        window.release(1)
    assert window.unanswered == 1


async def test_the_first_of_many_large_arrays_are_back_while_the_next_are_written() -> None:
    fleet = Fleet()
    large = TaskRequest("noop", tensors={"x": np.zeros(3 << 20, np.uint8)})
    window = Window(fleet, enumerate([large] * 9), 100, FAR)
    taking = asyncio.ensure_future(window.take())
    fleet.written.release()
    await wait_until_async(lambda: fleet.batches, 60)
    assert fleet.batches == [2], "two arrays of 3 MiB are a slice of 4 MiB"
    fleet.end(window, 0)
    assert [outcome.index for outcome in await taking] == [0]
    # Nor does a reader that is busy with the first hold the others up.
    for _ in range(4):
        fleet.written.release()
    await wait_until_async(lambda: sum(fleet.batches) == 9, 60)
    assert fleet.batches == [2, 2, 2, 2, 1]
    window.close()


@pytest.mark.parametrize("size", [1000, 3 << 20, 4 << 20])
async def test_an_iterator_on_the_loop_may_use_its_array_again_once_its_next_item_is_wanted(size: int) -> None:
    given: list[int] = []

    def refilled() -> Iterator[tuple[int, TaskRequest]]:
        array = np.zeros(size, np.uint8)
        for number in range(9):
            array[:] = number
            given.append(id(array))
            yield number, TaskRequest("noop", tensors={"x": array})

    class Reading(Fleet):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[list[int]] = []
            self.ids: list[int] = []

        def each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
            requests = list(requests)
            for index, request in requests:
                array = request.tensors["x"]
                assert isinstance(array, np.ndarray)
                self.seen.append([index, int(array[0])])
                self.ids.append(id(array))
            super().each(requests, sink)

    fleet = Reading()
    window = Window(fleet, lent(refilled(), [iter(())], owned), 100, FAR)
    taking = asyncio.ensure_future(window.take())
    for _ in range(9):
        fleet.written.release()
    await wait_until_async(lambda: len(fleet.seen) == 9, 60)
    assert fleet.seen == [[number] * 2 for number in range(9)]
    if size >= 4 << 20:
        assert fleet.ids == given, "what is written before the next is drawn is not copied"
    taking.cancel()
    window.close()


async def test_requests_that_fail_while_the_first_are_under_way_end_the_wait() -> None:
    def failing() -> Iterable[tuple[int, TaskRequest]]:
        yield from enumerate([TaskRequest("noop")] * 300)
        raise LookupError("no more of them")

    window = Window(Fleet(), iter(failing()), 1000, FAR)
    with pytest.raises(LookupError, match="no more of them"):
        await window.take()


async def test_a_reader_that_is_still_busy_gets_the_next_tasks_out() -> None:
    fleet = Fleet()
    window = Window(fleet, enumerate([TaskRequest("noop")] * 32), 16, FAR)
    taking = asyncio.ensure_future(window.take())
    await asyncio.sleep(0)
    for index in range(16):
        fleet.end(window, index)
    for _ in await taking:
        window.release(1)
    assert len(fleet.unfinished) == 16
    assert fleet.batches == [16] + [2] * 8


async def test_waiting_ends_at_the_deadline() -> None:
    window = Window(Fleet(), enumerate([TaskRequest("noop")]), 1, asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await window.take()
    assert window.unanswered == 1


async def test_a_deadline_that_passed_while_the_reader_was_busy_ends_the_next_wait() -> None:
    fleet = Fleet()
    window = Window(fleet, enumerate([TaskRequest("noop")] * 2), 2, asyncio.get_running_loop().time() + 0.01)
    taking = asyncio.ensure_future(window.take())
    await asyncio.sleep(0)
    fleet.end(window, 0)
    assert [outcome.index for outcome in await taking] == [0]
    await asyncio.sleep(0.02)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(window.take(), 60)


async def test_endless_requests_are_read_only_as_there_is_room() -> None:
    read = 0

    def endless() -> Iterable[tuple[int, TaskRequest]]:
        nonlocal read
        while True:
            yield read, TaskRequest("noop")
            read += 1

    fleet = Fleet()
    window = Window(fleet, iter(endless()), 5, asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await window.take()
    assert len(fleet.unfinished) == 5
    assert read < 6
