"""Which arrays a client keeps, under which names, and when it gives them up."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from parlmesh.blob_transfer import Exchange
from parlmesh.blobs import BlobFolder, Blobs, Reference
from parlmesh.blobs.store import PROOF
from parlmesh.client.connection.outgoing_tasks import Outgoing, Submissions
from parlmesh.client.connection.pending_outcomes import Pending
from parlmesh.client.large_arrays import Arrays
from parlmesh.client.outcomes import Outcome, refused
from parlmesh.client.task_request import TaskRequest
from parlmesh.errors import FleetError, InvalidInput, ResourceExhausted, Unavailable
from parlmesh.testing import wait_until_async
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb
from parlmesh.v1.blob_service_pb2 import BlobTerms, HoldBlobsRequest, HoldBlobsResponse
from parlmesh.wire import payload_to_proto


class Scheduler:
    """Removes what is given up, as soon as it may answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = BlobFolder(folder)
        self.given_up: list[str] = []
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()
        self.breaks = False

    async def HoldBlobs(self, request: HoldBlobsRequest, timeout: float) -> HoldBlobsResponse:  # noqa: ASYNC109
        self.asked.set()
        await self.answers.wait()
        if not request.seconds:
            self.given_up += request.names
            for name in request.names:
                self.folder.remove(name)
        if self.breaks:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        return HoldBlobsResponse(held=len(request.names))


@pytest.fixture
async def scheduler(tmp_path: Path) -> Scheduler:
    (tmp_path / PROOF).write_text("word")
    return Scheduler(tmp_path)


@pytest.fixture
async def arrays(scheduler: Scheduler, tmp_path: Path) -> Arrays:
    exchange = Exchange(scheduler, "a", cache_bytes=1 << 20, call_seconds=60.0, keeps_results=False)
    terms = BlobTerms(folder=str(tmp_path), proof="word", writer="c", least_bytes=100, largest_bytes=1 << 20)
    terms.lease.FromSeconds(60)
    exchange.agree(terms)
    return Arrays(exchange)


def request(array: Array) -> TaskRequest:
    return TaskRequest("echo", {}, {"x": array})


def used(arrays: Arrays, array: Array, task_id: str) -> str:
    _, names = arrays.without(request(array))
    arrays.use(task_id, names, ())
    (name,) = names
    return name


def outcome(name: str, array: Array) -> pb.Outcome:
    return pb.Outcome(result=payload_to_proto({}, {"y": Reference(name, array.dtype, array.shape)}))


def files(scheduler: Scheduler) -> list[str]:
    return [entry.name for entry in scheduler.folder.path.iterdir() if entry.name != PROOF]


async def told(arrays: Arrays) -> None:
    """Until everything that is given up has an answer."""
    while (sending := arrays.exchange._sending) is not None:
        await sending


async def test_an_array_that_is_being_given_up_is_kept_under_another_name(arrays: Arrays, scheduler: Scheduler) -> None:
    array = np.arange(100.0)
    scheduler.answers.clear()
    first = used(arrays, array, "one")
    arrays.ended("one", None)
    await scheduler.asked.wait()
    second = used(arrays, array, "two")
    assert second != first
    assert used(arrays, array, "three") == second
    reference = await asyncio.wait_for(put(arrays, scheduler, array), 60)
    assert reference.name == second
    scheduler.answers.set()
    await told(arrays)
    assert scheduler.given_up == [first]
    assert scheduler.folder.read(second, array.nbytes).view(float).tolist() == array.tolist()
    arrays.ended("two", None)
    arrays.ended("three", None)
    del reference
    # The thread that made it may still have it.
    await wait_until_async(lambda: not files(scheduler), 60.0)
    await told(arrays)
    assert used(arrays, array, "four") == first


async def put(arrays: Arrays, scheduler: Scheduler, array: Array) -> Reference:
    """While an earlier call waits."""
    waiting = asyncio.ensure_future(arrays.put(array))
    scheduler.asked.clear()
    await scheduler.asked.wait()
    scheduler.answers.set()
    return await waiting


async def test_what_was_given_up_without_an_answer_is_never_relied_on_again(
    arrays: Arrays, scheduler: Scheduler
) -> None:
    array = np.arange(100.0)
    scheduler.breaks = True
    first = used(arrays, array, "one")
    arrays.ended("one", None)
    await told(arrays)
    second = used(arrays, array, "two")
    assert second != first
    assert used(arrays, array, "three") == second


async def test_an_argument_that_came_back_stays_until_its_result_is_released(
    arrays: Arrays, scheduler: Scheduler
) -> None:
    array = np.arange(100.0)
    name = used(arrays, array, "echo")
    arrays.ended("echo", outcome(name, array))
    assert used(arrays, array, "sum") == name
    arrays.ended("sum", None)
    await told(arrays)
    assert scheduler.given_up == []
    arrays.release("echo", [Reference(name, array.dtype, array.shape)])
    await asyncio.sleep(0)
    await told(arrays)
    assert scheduler.given_up == [name]


class Notes:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes += outcomes


async def test_arrays_of_tasks_that_are_not_sent_or_not_waited_for_are_given_up(
    arrays: Arrays, scheduler: Scheduler
) -> None:
    pending, outgoing, notes = Pending(), Outgoing(most_tasks=100, most_bytes=8192), Notes()
    pending.arrays = arrays
    calls: Any = SimpleNamespace(check=lambda: None)
    submissions = Submissions("me", "me-", pending, outgoing, calls, seconds=60.0, give_up=lambda names: None)
    numbers = (np.arange(100.0) + number for number in range(100))

    def sent(task_id: str, **parameters: str) -> None:
        submissions.each([(0, TaskRequest("echo", parameters, {"x": next(numbers)}, task_id=task_id))], notes)

    for name in ("left", "refused", "forgotten", "ended"):
        sent(name)
    sent("left")
    sent("large", text="x" * 9000)
    assert [outcome.error.reason for outcome in notes.outcomes if outcome.error] == [
        "DUPLICATE_TASK_ID",
        "PAYLOAD_TOO_LARGE",
    ]
    with pytest.raises(InvalidInput, match="kind is"):
        await submissions.whole([request(next(numbers)), TaskRequest("", {}, {"x": next(numbers)})], notes)
    await told(arrays)
    assert len(files(scheduler)) == 4
    pending.settle(refused("refused", 0, InvalidInput("no")))
    pending.forget(["forgotten"])
    pending.leave(notes)
    await told(arrays)
    assert files(scheduler) == []
    assert arrays.uses.tasks == {}
    sent("closed")
    pending.close(Unavailable("closed"))
    await told(arrays)
    assert files(scheduler) == []


async def test_an_id_that_is_given_twice_needs_the_arrays_of_both(arrays: Arrays, scheduler: Scheduler) -> None:
    names = [used(arrays, np.arange(100.0) + number, "same") for number in range(2)]
    arrays.ended("same", None)
    await told(arrays)
    assert sorted(scheduler.given_up) == sorted(names)


async def test_arrays_that_somebody_gave_as_references_are_not_removed_with_a_task_that_is_not_sent(
    arrays: Arrays, scheduler: Scheduler
) -> None:
    array = np.arange(100.0)
    reference = another_process(scheduler).keep(array, "theirs")
    with pytest.raises(RuntimeError):
        async with arrays.written([(0, TaskRequest("echo", {}, {"x": reference, "y": array}))]):
            raise RuntimeError
    assert files(scheduler) == [reference.name.removeprefix("blob:")]


def another_process(scheduler: Scheduler) -> Blobs:
    """Which keeps arrays there, too."""
    return Blobs.of((str(scheduler.folder.path), "c", "100", "10000", "0"))


async def test_a_result_that_two_hold_goes_with_the_last(arrays: Arrays, scheduler: Scheduler) -> None:
    class Holder:
        pass

    reference = Reference("blob:a1.1." + "0" * 32, np.dtype(float), (100,))
    one, two = Holder(), Holder()
    arrays.release_with(one, "one", [reference])
    arrays.release_with(two, "two", [reference])
    del one
    await asyncio.sleep(0)
    await told(arrays)
    assert scheduler.given_up == []
    del two
    await asyncio.sleep(0)
    await told(arrays)
    assert scheduler.given_up == [reference.name]


async def test_a_result_stays_until_the_tasks_that_get_it_have_ended_and_longer_when_one_returns_it(
    arrays: Arrays, scheduler: Scheduler
) -> None:
    array = np.arange(100.0)
    reference = another_process(scheduler).keep(array, "2")
    arrays.use("sum", (), ["make"])
    arrays.use("same", (), ["make"])
    arrays.release("make", [reference])
    arrays.ended("sum", None)
    await asyncio.sleep(0)
    await told(arrays)
    assert scheduler.given_up == []
    arrays.ended("same", outcome(reference.name, array))
    await told(arrays)
    assert scheduler.given_up == []
    arrays.release("same", [reference])
    await asyncio.sleep(0)
    await told(arrays)
    assert scheduler.given_up == [reference.name]
    assert list(arrays.uses) == []


async def test_a_client_that_closes_gives_up_what_is_its_own_and_leaves_results_that_others_may_read(
    arrays: Arrays, scheduler: Scheduler
) -> None:
    array = np.arange(100.0)
    own, other = (Reference(f"blob:a1.{number}." + "0" * 32, array.dtype, array.shape) for number in range(2))
    holder = Notes()
    arrays.release_with(holder, "future", [own])
    used(arrays, array, "echo")
    arrays.ended("echo", outcome(other.name, array))
    unfinished = used(arrays, array + 1, "unfinished")
    await told(arrays)
    scheduler.given_up.clear()
    await arrays.close()
    assert sorted(scheduler.given_up) == sorted([own.name, unfinished])


class Slow:
    """Writing that takes as long as the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        write = BlobFolder.write

        def slow(folder: BlobFolder, name: str, data: memoryview) -> None:
            self.began.set()
            assert self.goes_on.wait(60)
            write(folder, name, data)

        monkeypatch.setattr(BlobFolder, "write", slow)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, 60)


@pytest.mark.parametrize("ended_by", ["cancel", "close"])
@pytest.mark.parametrize("written_by", ["put", "map"])
async def test_what_is_written_when_nobody_wants_it_any_more_is_not_left_behind(
    arrays: Arrays, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, written_by: str, ended_by: str
) -> None:
    slow, array = Slow(monkeypatch), np.arange(100.0)

    async def mapped() -> None:
        async with arrays.written([(0, request(array))]):
            raise AssertionError("it is not to be submitted")

    writing = asyncio.ensure_future(arrays.put(array) if written_by == "put" else mapped())
    await slow.begun()
    if ended_by == "cancel":
        writing.cancel()
    else:
        await arrays.close()
    await asyncio.sleep(0)
    slow.goes_on.set()
    with pytest.raises((asyncio.CancelledError, FleetError)) as end:
        await writing
    assert ended_by == "cancel" or end.value.reason == "CLOSED"  # type: ignore[attr-defined]
    assert files(scheduler) == []


@pytest.mark.parametrize("written_by", ["put", "map"])
async def test_what_is_being_given_up_makes_room_before_a_full_folder_is_told(
    arrays: Arrays, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, written_by: str
) -> None:
    name = used(arrays, np.zeros(100), "one")
    write, array = BlobFolder.write, np.arange(100.0)

    def full(folder: BlobFolder, wanted: str, data: memoryview) -> None:
        if not scheduler.given_up:
            arrays._loop.call_soon_threadsafe(arrays.ended, "one", None)
            raise OSError(28, "No space left on device")
        write(folder, wanted, data)

    monkeypatch.setattr(BlobFolder, "write", full)
    if written_by == "put":
        kept = (await arrays.put(array)).name
    else:
        async with arrays.written([(0, request(array))]) as ((_, ready),):
            reference = ready.tensors["x"]
            assert isinstance(reference, Reference)
            kept = reference.name
            arrays.use("two", [kept], ())
    assert scheduler.given_up == [name]
    assert scheduler.folder.size(kept) == array.nbytes


async def test_a_full_folder_is_told_with_what_is_wanted_and_free_unless_the_message_has_room(
    arrays: Arrays, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(1000.0)

    def full(folder: BlobFolder, name: str, data: memoryview) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BlobFolder, "write", full)
    text = rf"an array of 8000 bytes cannot be kept in {scheduler.folder.path}: \d+ bytes are free there"
    with pytest.raises(ResourceExhausted, match=text) as error:
        await arrays.put(array)
    assert error.value.reason == "BLOB_FOLDER_FULL"
    assert error.value.retry_after_seconds > 0
    assert error.value.metadata["size_bytes"] == "8000"
    arrays.exchange.blobs.message_bytes = 8000
    with pytest.raises(ResourceExhausted, match=text):
        arrays.without(request(array))
    arrays.exchange.blobs.message_bytes = 20_000
    assert arrays.without(request(array))[0].tensors["x"] is array
    # Also what a message would hold, and a scheduler would not take.
    arrays.exchange.blobs.message_bytes = arrays.exchange.blobs.largest_bytes = 8 << 20
    with pytest.raises(ResourceExhausted, match="of 4800000 bytes"):
        arrays.without(request(np.zeros(600_000)))
