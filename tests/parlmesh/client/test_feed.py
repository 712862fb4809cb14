import itertools
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from parlmesh.client import TaskRequest
from parlmesh.client.feed import Feed, Lent, Raised, fed, lent
from parlmesh.client.task_request import owned


async def taken(feed: Feed[int], count: int) -> list[int]:
    return list(feed) if await feed.more(count) else []


async def test_an_item_goes_out_while_the_next_is_waited_for() -> None:
    gate = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        gate.wait(60)
        yield 2

    feed = Feed(slow())
    assert await taken(feed, 9) == [1]
    gate.set()
    assert await taken(feed, 9) == [2]
    assert not await feed.more(9)
    assert feed.ended


async def test_no_more_is_read_than_there_is_room_for() -> None:
    numbers = itertools.count()
    feed = Feed(numbers)
    found: list[int] = []
    while len(found) < 5:
        found += await taken(feed, 5 - len(found))
    feed.close()
    assert found == [0, 1, 2, 3, 4]
    assert next(numbers) == 5


async def test_items_come_before_the_failure_that_follows_them() -> None:
    feed = Feed(1 // n for n in (1, 0))
    assert await taken(feed, 1) == [1]
    with pytest.raises(Raised) as carrier:
        await feed.more(1)
    assert isinstance(carrier.value.error, ZeroDivisionError)


async def test_what_cannot_be_iterated_over_is_a_failure() -> None:
    with pytest.raises(Raised) as carrier:
        await Feed(5).more(1)  # type: ignore[arg-type]
    assert isinstance(carrier.value.error, TypeError)


def test_what_is_at_hand_needs_no_thread() -> None:
    items = enumerate([TaskRequest("noop")])
    for read in (fed, lent):
        assert read(items, [[1], range(3)], owned) is items
    assert isinstance(fed(items, [[1], (n for n in range(3))], owned), Feed)
    assert isinstance(lent(items, [[1], (n for n in range(3))], owned), Lent)


def refilled(size: int, count: int) -> Iterator[tuple[int, TaskRequest]]:
    """As a reader of frames gives them."""
    array = np.zeros(size, np.uint8)
    for number in range(count):
        array[:] = number
        yield number, TaskRequest("noop", tensors={"x": array})


@pytest.mark.parametrize("size", [10, 4 << 20])
async def test_an_array_that_is_used_again_for_the_next_item_stays_what_it_was_until_more_is_asked_for(
    size: int,
) -> None:
    feed = fed(refilled(size, 5), [iter(())], owned)
    assert isinstance(feed, Feed)
    found: list[list[int]] = []
    while await feed.more(5):
        for index, request in feed:
            array = request.tensors["x"]
            assert isinstance(array, np.ndarray)
            found.append([index, int(array[0]), int(array[-1])])
    assert found == [[number] * 3 for number in range(5)]


async def test_an_item_with_large_arrays_is_not_copied_and_the_next_is_read_once_it_was_submitted() -> None:
    read = 0

    def arrays() -> Iterator[tuple[int, TaskRequest]]:
        nonlocal read
        for index, request in refilled(4 << 20, 3):
            read = index
            yield index, request

    feed = fed(arrays(), [iter(())], owned)
    assert isinstance(feed, Feed)
    shown = []
    while await feed.more(3):
        ((index, request),) = feed
        assert read == index
        shown.append(request.tensors["x"])
    assert len({id(array) for array in shown}) == 1


async def test_a_feed_that_is_closed_while_an_item_is_lent_reads_no_further() -> None:
    items = refilled(4 << 20, 3)
    feed = fed(items, [iter(())], owned)
    assert isinstance(feed, Feed)
    assert await feed.more(3)
    feed.close()
    assert feed._thread is not None
    feed._thread.join(60)
    assert next(items)[0] == 1
