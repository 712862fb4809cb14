import itertools
import threading
from collections.abc import Iterator

import pytest

from parlmesh.client.feed import Feed, Raised, fed


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
    items = iter([1])
    assert fed(items, [[1], range(3)]) is items
    assert isinstance(fed(items, [[1], (n for n in range(3))]), Feed)
