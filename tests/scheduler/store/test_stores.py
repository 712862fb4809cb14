"""One suite for every store: the next start finds what was appended."""

import sqlite3
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from parlmesh.errors import FailedPrecondition
from parlmesh.postgres.connection_settings import Target
from scheduler.config import SchedulerConfig
from scheduler.core.core import Core
from scheduler.core.task import Task, TaskState
from scheduler.journal.record_reader import decode
from scheduler.journal.records import DamagedJournal, Submitted
from scheduler.store import MemoryStore, SqliteStore, Store
from scheduler.store.postgres import PostgresStore
from tests.scheduler.conftest import Harness

Make = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite full", "sqlite normal", "postgresql"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A store, and the same store again after a restart."""
    if request.param == "memory":
        kept = MemoryStore(compact_records=50)
        return lambda: kept
    if request.param == "postgresql":
        target = Target(request.getfixturevalue("postgres").database())
        return lambda: PostgresStore(target, compact_records=50)
    synchronous: Literal["full", "normal"] = "full" if request.param == "sqlite full" else "normal"
    return lambda: SqliteStore(tmp_path / "deep" / "s.sqlite", synchronous=synchronous, compact_records=50)


def reopen(make: Make, wall_time: float = 100.0) -> tuple[Store, list[bytes], int]:
    store = make()
    opened = store.open(wall_time)
    return store, list(opened.batches), opened.lease_floor


def test_a_new_store_is_empty(make_store: Make) -> None:
    store, batches, _ = reopen(make_store)
    assert batches == []
    store.close()


def test_what_was_appended_is_found_in_order_after_a_restart(make_store: Make) -> None:
    store, _, _ = reopen(make_store)
    for number in range(20):
        store.append(_batch(number), 1)
    store.close()
    store, batches, _ = reopen(make_store)
    assert b"".join(batches) == b"".join(_batch(number) for number in range(20))
    store.append(_batch(20), 1)
    store.close()
    store, batches, _ = reopen(make_store)
    store.close()
    assert b"".join(batches) == b"".join(_batch(number) for number in range(21))


def test_every_start_gets_a_higher_lease_floor_even_when_the_clock_goes_back(make_store: Make) -> None:
    floors = []
    for wall_time in (1000.0, 1000.0, 10.0, 5000.0):
        store, _, floor = reopen(make_store, wall_time)
        store.close()
        floors.append(floor)
    assert floors == sorted(set(floors))
    assert all(later - earlier >= 1 << 32 for earlier, later in pairwise(floors))


def test_a_store_is_the_same_after_a_restart_and_another_one_is_not(make_store: Make) -> None:
    identities = set()
    for _ in range(2):
        store, _, _ = reopen(make_store)
        identities.add(store.identity)
        store.close()
    assert len(identities) == 1
    assert identities.isdisjoint({0, MemoryStore().identity})


def test_a_compacted_journal_rebuilds_the_same_core(make_store: Make) -> None:
    harness = Harness(retention={"max_tasks": 5})
    store, _, _ = reopen(make_store)
    actor = harness.connect("a", slots=3)
    harness.connect("b", credits=0)
    for number in range(30):
        harness.submit(
            Task(f"{number}", "noop", body=b"x"), Task(f"child {number}", "noop", dependencies=(f"{number}",))
        )
        task, *_ = harness.take(actor)
        if number % 5:
            harness.finish(actor, *[task], result=b"r")
        else:
            harness.fail(actor, task, retryable=number % 2 == 0)
        harness.pass_time(1.0, alive=[actor])
    for batch, records in harness.records:
        store.append(batch, records)
    assert store.wants_compaction()
    before = store_size(store)
    for number, _ in enumerate(store.compact()):
        if number == 0:
            store.append(_batch(9999), 1)
    assert not store.wants_compaction()
    assert store_size(store) < before
    store.close()
    store, batches, floor = reopen(make_store)
    store.close()
    copy = Core(SchedulerConfig(), now=harness.now, wall_time=harness.now, lease_floor=floor)
    copy.recover(batches, harness.now)
    added = copy.life.tasks.pop("t9999")
    assert added.state is TaskState.QUEUED
    assert summary(copy) == summary(harness.core)


def test_few_large_records_want_a_compaction_too_and_what_is_alive_counts_twice(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite", compact_bytes=10_000)
    list(store.open(1.0).batches)
    assert _appended_until_full(store, 0) == 4
    list(store.compact())
    assert _appended_until_full(store, 4) == 8
    store.close()
    list(store.open(2.0).batches)
    assert store.wants_compaction()
    list(store.compact())
    assert _appended_until_full(store, 12) == 24
    store.close()


def _appended_until_full(store: Store, first: int) -> int:
    number = first
    while not store.wants_compaction():
        store.append(_batch(number, b"x" * 3_000), 1)
        number += 1
    return number - first


def test_compaction_may_be_abandoned_at_any_step(make_store: Make) -> None:
    store, _, _ = reopen(make_store)
    for number in range(100):
        store.append(_batch(number), 1)
    store.close()
    for steps in range(12):
        store, batches, _ = reopen(make_store)
        assert sum(1 for batch in batches for _ in decode(batch)) == 100
        for number, _ in enumerate(store.compact()):
            if number >= steps:
                break
        store.close()
    store, batches, _ = reopen(make_store)
    store.close()
    assert sum(1 for batch in batches for _ in decode(batch)) == 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.sqlite"
    store = SqliteStore(path)
    list(store.open(1.0).batches)
    for number in range(5):
        store.append(_batch(number), 1)
    store.close()
    return path


def test_a_second_scheduler_on_the_same_file_is_refused(path: Path) -> None:
    first = SqliteStore(path)
    first.open(1.0)
    with pytest.raises(FailedPrecondition, match="in use"):
        SqliteStore(path).open(1.0)
    first.close()
    SqliteStore(path).open(1.0)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        ("UPDATE journal SET batch = zeroblob(length(batch)) WHERE id = 3", "version 0"),
        ("UPDATE journal SET batch = substr(batch, 1, length(batch) - 1) WHERE id = 3", "checksum"),
        ("DELETE FROM journal WHERE id = 3", "missing"),
    ],
)
def test_a_damaged_row_stops_the_start_and_repair_goes_on_without_it(path: Path, damage: str, word: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(damage)
    database.close()
    store = SqliteStore(path)
    with pytest.raises(DamagedJournal, match=word) as caught:
        list(store.open(1.0).batches)
    whole = store.identity
    assert "journal row 3" in caught.value.message
    assert "store.repair" in caught.value.message
    store.close()
    store = SqliteStore(path, repair=True)
    assert task_ids(store.open(1.0).batches) == ["t0", "t1", "t3", "t4"]
    assert store.identity != whole  # clients must resubmit what it lost
    store.append(_batch(77), 1)
    store.close()
    store = SqliteStore(path)
    assert task_ids(store.open(1.0).batches) == ["t0", "t1", "t3", "t4", "t77"]
    store.close()


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"not a database at all, whatever its name says" * 100)
    with pytest.raises(DamagedJournal):
        SqliteStore(path).open(1.0)


def test_a_journal_of_another_format_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    database.close()
    with pytest.raises(DamagedJournal, match="format 99"):
        SqliteStore(path).open(1.0)


def test_a_full_disk_is_an_error_and_the_store_works_again_after_it(path: Path) -> None:
    store = SqliteStore(path)
    list(store.open(1.0).batches)
    pages = store.tables.execute("PRAGMA page_count").fetchone()[0]
    store.tables.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(OSError, match="full"):
        store.append(b"x" * 100_000, 1)
    store.tables.execute("PRAGMA max_page_count = 1000000")
    store.append(_batch(5), 1)
    store.close()
    store = SqliteStore(path)
    assert len(list(store.open(1.0).batches)) == 6
    store.close()


def task_ids(batches: Iterable[bytes]) -> list[str]:
    return [record.task.task_id for batch in batches for record in decode(batch) if isinstance(record, Submitted)]


def _batch(number: int, body: bytes = b"") -> bytes:
    harness = Harness()
    harness.core.life.next_number = number + 1
    harness.submit(Task(f"t{number}", "noop", body))
    return harness.records[0][0]


def store_size(store: Store) -> int:
    if isinstance(store, MemoryStore):
        return sum(len(batch) for batch in store._batches)
    if isinstance(store, PostgresStore):
        return sum(map(len, store._rows.journal(store._place.covered + 1))) + sum(
            map(len, store._rows.snapshot(store._place))
        )
    assert isinstance(store, SqliteStore)
    rows = store.tables.execute("SELECT batch FROM journal UNION ALL SELECT batch FROM snapshot")
    return sum(len(row[0]) for row in rows)


def summary(core: Core) -> list[tuple[object, ...]]:
    """The state that a restart must keep."""
    return sorted(
        (
            task.task_id,
            task.state if task.final else "unfinished",
            task.attempts,
            task.failures,
            task.losses,
            task.lease_id if task.actor else 0,
            task.result,
            0 if task.final else task.missing,
        )
        for task in core.life.tasks.values()
    )
