from collections.abc import Callable

from scheduler.store.compaction_schedule import RETRY_SECONDS, CompactionSchedule


def schedule(clock: Callable[[], float] = lambda: 0.0) -> CompactionSchedule:
    return CompactionSchedule(compact_records=10, compact_bytes=1_000, clock=clock)


def test_many_records_or_many_bytes_are_enough() -> None:
    many, large = schedule(), schedule()
    many.add(9, 9)
    large.add(1, 999)
    assert not many.is_due()
    assert not large.is_due()
    many.add(1, 1)
    large.add(1, 1)
    assert many.is_due()
    assert large.is_due()


def test_what_is_alive_counts_twice_and_what_came_during_a_compaction_is_new() -> None:
    found = schedule()
    found.add(10, 10)
    found.begin()
    found.add(3, 3)
    found.succeed(live_tasks=8, live_bytes=8)
    assert (found.new_records, found.new_bytes) == (3, 3)
    found.add(12, 12)
    assert not found.is_due()
    found.add(1, 1)
    assert found.is_due()


def test_a_compaction_that_failed_is_not_tried_again_at_once() -> None:
    now = 0.0
    found = schedule(lambda: now)
    found.add(10, 10)
    found.begin()
    assert not found.is_due()
    now += RETRY_SECONDS
    assert found.is_due()
