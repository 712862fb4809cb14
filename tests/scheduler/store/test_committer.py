"""Nothing is released before it is durable, and a failing store is tried again until it works."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from parlmesh.testing import wait_until_async
from scheduler.core.actions import Persist
from scheduler.journal.record_reader import decode
from scheduler.store.committer import Committer
from scheduler.store.protocol import Opened


class GatedStore:
    """A store whose disk the test controls."""

    durable = True
    identity = 1

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.appended: list[bytes] = []
        self.failures = 0
        self.waiting = threading.Event()
        self.compactions = 0
        self.compact_after = 10**9
        self.closed = False
        self.missing = False

    def open(self, wall_time: float) -> Opened:
        return Opened(1, iter(()))

    def append(self, batch: bytes, records: int) -> None:
        self.waiting.set()
        assert self.open_gate.wait(60)
        if self.failures:
            self.failures -= 1
            raise OSError("disk full")
        self.appended.append(batch)

    def renew_identity(self) -> None:
        self.identity += 1

    def check(self) -> None:
        if self.missing:
            raise OSError("the file is gone")

    def wants_compaction(self) -> bool:
        return len(self.appended) >= self.compact_after

    def compact(self) -> Iterator[None]:
        self.compact_after = 10**9
        for _ in range(3):
            yield
        self.compactions += 1

    def close(self) -> None:
        self.closed = True


def persist(forgotten: int) -> Persist:
    return Persist(0.0, [], [], [], [], forgotten, [])


@asynccontextmanager
async def running(
    store: GatedStore, on_health: Callable[[bool], None] = lambda healthy: None
) -> AsyncIterator[Committer]:
    committer = Committer(store, on_health=on_health)
    committer.start(asyncio.get_running_loop())
    try:
        yield committer
    finally:
        store.open_gate.set()
        await committer.close(5.0)


async def test_answers_wait_for_the_commit_and_come_in_order() -> None:
    store = GatedStore()
    released: list[int] = []
    async with running(store) as committer:
        for number in range(1, 4):
            committer.add(persist(number))
            committer.after_commit(lambda number=number: released.append(number))  # type: ignore[misc]
        waiter = asyncio.ensure_future(committer.committed())
        await wait_until_async(store.waiting.is_set, 60)
        assert released == []
        assert not waiter.done()
        store.open_gate.set()
        await asyncio.wait_for(waiter, 60)
        assert released == [1, 2, 3]


async def test_nothing_added_means_nothing_to_wait_for() -> None:
    async with running(GatedStore()) as committer:
        released: list[int] = []
        committer.after_commit(lambda: released.append(1))
        assert released == [1]
        await asyncio.wait_for(committer.committed(), 1)


async def test_what_is_decided_during_a_commit_shares_the_next_one() -> None:
    store = GatedStore()
    async with running(store) as committer:
        committer.add(persist(1))
        await wait_until_async(store.waiting.is_set, 60)
        for number in range(2, 100):
            committer.add(persist(number))
        store.open_gate.set()
        await asyncio.wait_for(committer.committed(), 60)
        assert len(store.appended) == 2
        assert sum(1 for batch in store.appended for _ in decode(batch)) == 99


async def test_a_failing_store_is_tried_again_with_the_same_batch_and_health_says_so() -> None:
    store = GatedStore()
    store.failures = 2
    store.open_gate.set()
    health: list[bool] = []
    async with running(store, health.append) as committer:
        committer.add(persist(7))
        await asyncio.wait_for(committer.committed(), 60)
        assert health == [False, True]
        assert len(store.appended) == 1


async def test_a_store_that_vanishes_while_nobody_writes_is_noticed_and_its_return_too() -> None:
    store = GatedStore()
    health: list[bool] = []
    async with running(store, health.append):
        store.missing = True
        await wait_until_async(lambda: health == [False], 60)
        store.missing = False
        await wait_until_async(lambda: health == [False, True], 60)


async def test_closing_commits_everything_that_was_added() -> None:
    store = GatedStore()
    committer = Committer(store, on_health=lambda healthy: None)
    committer.start(asyncio.get_running_loop())
    for number in range(1, 50):
        committer.add(persist(number))
    store.open_gate.set()
    assert await committer.close(5.0)
    assert sum(1 for batch in store.appended for _ in decode(batch)) == 49


async def test_closing_with_a_dead_store_gives_up_and_says_so() -> None:
    store = GatedStore()
    store.failures = 10**9
    store.open_gate.set()
    committer = Committer(store, on_health=lambda healthy: None)
    committer.start(asyncio.get_running_loop())
    committer.add(persist(1))
    assert not await committer.close(0.05)


async def test_compaction_runs_between_commits() -> None:
    store = GatedStore()
    store.open_gate.set()
    store.compact_after = 1
    async with running(store) as committer:
        committer.add(persist(1))
        await asyncio.wait_for(committer.committed(), 60)
        await wait_until_async(lambda: store.compactions == 1, 60)
        committer.add(persist(2))
        await asyncio.wait_for(committer.committed(), 60)
        assert len(store.appended) == 2
