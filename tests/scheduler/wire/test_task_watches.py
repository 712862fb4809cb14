"""Each watcher gets each outcome it asked for once."""

import asyncio
import gc

import pytest

from parlmesh.errors import ResourceExhausted, Unavailable
from scheduler.core.task import Task, TaskState
from scheduler.wire import task_watches
from scheduler.wire.task_watches import Watch, Watchers


def ended(task_id: str, submitter: str = "me", result: bytes = b"") -> Task:
    task = Task(task_id, "noop", submitter=submitter)
    task.result = result
    task.state = TaskState.SUCCEEDED
    return task


async def take(watch: Watch) -> list[str]:
    return [task.task_id for task in await asyncio.wait_for(watch.take(), 5)]


async def test_a_watch_by_id_ends_when_every_task_was_given() -> None:
    watchers = Watchers()
    watch = Watch({"a", "b"})
    watchers.add(watch, ["a", "b"])
    watchers.notify([ended("a"), ended("x")])
    assert await take(watch) == ["a"]
    watchers.notify([ended("a"), ended("b")])
    assert await take(watch) == ["b"]
    assert await take(watch) == []


async def test_a_watch_by_submitter_goes_on_and_sees_only_its_own() -> None:
    watchers = Watchers()
    watch = Watch(set(), "me")
    watchers.add(watch, [])
    watchers.notify([ended("a"), ended("x", "you"), ended("b")])
    assert await take(watch) == ["a", "b"]
    watchers.remove(watch)
    watchers.notify([ended("c")])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.take(), 0.01)


async def test_two_watchers_of_one_task_both_get_it() -> None:
    watchers = Watchers()
    watches = [Watch({"a"}), Watch({"a"}), Watch(set(), "me")]
    for watch in watches:
        watchers.add(watch, sorted(watch.waiting_for))
    watchers.notify([ended("a")])
    assert [await take(watch) for watch in watches] == [["a"]] * 3


async def test_a_finished_task_is_waited_for_until_its_owner_gives_it() -> None:
    watchers = Watchers()
    watch = Watch({"done"})
    watchers.add(watch, [])
    watchers.notify([ended("done")])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.take(), 0.01)
    watch.give(ended("done"))
    assert await take(watch) == ["done"]
    assert await take(watch) == []


async def test_closing_ends_every_watch_with_the_reason() -> None:
    watchers = Watchers()
    watch = Watch({"a"})
    watchers.add(watch, ["a"])
    watchers.close(Unavailable("stopping"))
    with pytest.raises(Unavailable):
        await watch.take()


async def test_a_watcher_that_reads_too_slowly_is_ended_and_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_watches, "MAX_BEHIND", 3)
    watchers = Watchers()
    watch = Watch(set(), "me")
    watchers.add(watch, [])
    watchers.notify([ended(str(number)) for number in range(9)])
    assert watch._ready == []
    with pytest.raises(ResourceExhausted, match="the limits are 3 and") as caught:
        await watch.take()
    assert caught.value.reason == "WATCHER_TOO_SLOW"


async def test_a_watcher_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_watches, "MAX_BEHIND_BYTES", 10_000)
    watch = Watch({str(number) for number in range(9)})
    for number in range(9):
        watch.give(ended(str(number), result=bytes(2000)))
    assert (watch._ready, watch._bytes) == ([], 0)
    with pytest.raises(ResourceExhausted, match="outcomes of"):
        await watch.take()


async def test_a_watcher_that_does_not_read_keeps_nothing_that_was_forgotten() -> None:
    kept = {name: ended(name, result=bytes(900)) for name in ("a", "b")}
    watch = Watch({"a", "b", "c"})
    watch.give_early(["a", "b"], kept.get)
    forgotten = kept.pop("b")
    assert not any(forgotten in found for found in gc.get_referrers(forgotten) if isinstance(found, list))
    with pytest.raises(ResourceExhausted, match="forgotten before they were read") as caught:
        await watch.take()
    assert caught.value.reason == "WATCHER_TOO_SLOW"


async def test_much_is_taken_in_portions_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_watches, "TAKE_BYTES", 1000)
    names = [f"{number}" for number in range(6)]
    watch = Watch(set(names))
    watch.give_early(names[:3], {name: ended(name, result=bytes(900)) for name in names[:3]}.get)
    for name in names[3:]:
        watch.give(ended(name, result=bytes(900)))
    portions = []
    while portion := await take(watch):
        portions.append(portion)
    assert portions == [["0", "1"], ["2", "3"], ["4", "5"]]
