"""Each watcher gets each outcome it asked for once."""

import asyncio

import pytest

from parlmesh.errors import ResourceExhausted, Unavailable
from scheduler import watching
from scheduler.task import Task, TaskState
from scheduler.watching import Watch, Watchers


def ended(task_id: str, submitter: str = "me") -> Task:
    task = Task(task_id, "noop", submitter=submitter)
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


async def test_a_watcher_of_a_submitter_that_reads_too_slowly_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_BEHIND", 3)
    watchers = Watchers()
    watch = Watch(set(), "me")
    watchers.add(watch, [])
    watchers.notify([ended(str(number)) for number in range(5)])
    with pytest.raises(ResourceExhausted, match="3 outcomes behind"):
        await watch.take()
