"""Submitting over real gRPC: single requests, streams of them, and requests that are refused whole."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, NotFound, ResourceExhausted, Unavailable
from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from tests.integration.scheduler_service.conftest import SECONDS, Client, Make, RemoteActor, noop, scheduler_of


async def test_a_task_goes_out_and_its_result_comes_back_whole(client: Client, make_actor: Make) -> None:
    actor = await make_actor()
    spec = noop("t", priority=task_pb2.PRIORITY_HIGH, run_timeout=Duration(seconds=9))
    spec.payload.parameters["text"] = "hello"
    spec.payload.tensors.add(name="x", data=b"\0\1\2")
    assert await client.submit(spec) == ["t"]
    (assignment,) = await actor.take()
    assert assignment.payload == spec.payload
    assert (assignment.kind, assignment.priority, assignment.run_timeout.seconds) == ("noop", 4, 9)
    assert (assignment.lease.task_id, assignment.lease.attempt) == ("t", 1)
    await actor.answer(assignment)
    (outcome,) = await client.outcomes(["t"])
    assert outcome.state == task_pb2.TASK_STATE_SUCCEEDED
    assert outcome.result == spec.payload
    assert (outcome.actor_id, outcome.attempts, outcome.ran.nanos) == ("a", 1, 1_000_000)
    await wait_until_async(lambda: actor.acknowledged == ["t"], SECONDS)
    task = await client.get("t")
    assert task.spec.payload == spec.payload
    assert task.outcome == outcome


async def test_a_stream_of_requests_has_a_receipt_for_each_in_order_and_outlives_refusals(client: Client) -> None:
    requests = [
        pb.SubmitTaskStreamRequest(tasks=[noop("a"), noop("b")]),
        pb.SubmitTaskStreamRequest(tasks=[noop("c"), noop("d", dependencies=["nobody"])]),
        pb.SubmitTaskStreamRequest(tasks=[noop("e")]),
    ]
    call = client.stub.SubmitTaskStream(iter(requests), timeout=SECONDS)
    receipts = [status async for response in call for status in response.receipts]
    assert [status.code for status in receipts] == [0, grpc.StatusCode.INVALID_ARGUMENT.value[0], 0]
    assert "nobody" in receipts[1].message
    answer = await client.call("ListTasks", pb.ListTasksRequest())
    assert sorted(task.spec.task_id for task in answer.tasks) == ["a", "b", "e"]


async def test_a_message_that_is_not_a_request_is_refused_and_the_stream_continues(client: Client) -> None:
    call: Any = client.channel.stream_stream("/parlmesh.v1.SchedulerService/SubmitTaskStream")(timeout=SECONDS)
    await call.write(b"\xff\xff\xff")
    await call.write(pb.SubmitTaskStreamRequest(tasks=[noop("a")]).SerializeToString())
    await call.done_writing()
    receipts = [status async for data in call for status in pb.SubmitTaskStreamResponse.FromString(data).receipts]
    assert [status.code for status in receipts] == [grpc.StatusCode.INVALID_ARGUMENT.value[0], 0]
    assert receipts[0].message == "a message of 3 bytes cannot be parsed"


@pytest.mark.parametrize(
    ("tasks", "error", "reason"),
    [
        ([noop("good"), task_pb2.TaskSpec(task_id="bad")], InvalidInput, "MISSING_KIND"),
        ([noop("good"), task_pb2.TaskSpec(kind="shoggi")], FailedPrecondition, "UNKNOWN_KIND"),
        ([noop("good"), noop("bad", dependencies=["absent"])], InvalidInput, "UNKNOWN_DEPENDENCY"),
        ([noop("good"), noop("bad", dependencies=["bad"])], InvalidInput, "CYCLIC_DEPENDENCY"),
        ([noop("good"), noop("bad", queue_timeout=Duration(seconds=-1))], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", run_timeout=Duration(nanos=-1))], InvalidInput, "INVALID_TIMEOUT"),
        ([noop("good"), noop("bad", priority=99)], InvalidInput, "UNKNOWN_PRIORITY"),
        ([noop(str(number)) for number in range(51)], ResourceExhausted, "QUEUE_FULL"),
        ([noop(str(number)) for number in range(10_001)], InvalidInput, "TOO_MANY_TASKS"),
    ],
)
async def test_bad_input_gets_a_clear_status_and_nothing_is_half_submitted(
    client: Client, make_actor: Make, tasks: list[task_pb2.TaskSpec], error: type[FleetError], reason: str
) -> None:
    await make_actor(credits=0)
    with pytest.raises(error) as caught:
        await client.submit(*tasks)
    assert caught.value.reason == reason
    statistics = await client.statistics()
    assert statistics.queued_tasks + statistics.running_tasks + statistics.waiting_tasks == 0
    with pytest.raises(NotFound):
        await client.get("good")


async def test_an_oversized_payload_is_refused(client: Client) -> None:
    spec = noop("t")
    spec.payload.parameters["text"] = "x" * 1000
    with pytest.raises(InvalidInput, match="max_payload_bytes"):
        await client.submit(noop("good"), spec)


async def test_a_payload_of_exactly_the_limit_is_accepted_and_one_more_byte_is_refused_with_its_size(
    client: Client,
) -> None:
    largest, text = noop("t"), "x" * 900
    largest.payload.parameters["text"] = text
    text += "x" * (1000 - largest.payload.ByteSize())
    largest.payload.parameters["text"] = text
    assert largest.payload.ByteSize() == 1000
    await client.submit(largest)
    larger = noop("larger")
    larger.payload.parameters["text"] = text + "x"
    assert larger.payload.ByteSize() == 1001
    with pytest.raises(InvalidInput, match="has 1001 bytes; the limit is 1000"):
        await client.submit(larger)


async def test_a_full_queue_says_when_to_come_back(client: Client) -> None:
    await client.submit(*[noop() for _ in range(50)])
    with pytest.raises(ResourceExhausted) as caught:
        await client.submit(noop())
    assert caught.value.retry_after_seconds > 0


async def test_a_store_that_cannot_be_written_refuses_tasks_and_recovers(tmp_path: Path) -> None:
    async with (
        scheduler_of(store={"kind": "sqlite", "path": tmp_path / "s.sqlite"}) as scheduler,
        open_channel(scheduler.server.address) as channel,
    ):
        client = Client(channel)
        await client.submit(noop("before"))
        append, failing = scheduler._store.append, [True]

        def append_or_fail(batch: bytes, records: int) -> None:
            if failing:
                raise OSError("disk full")
            append(batch, records)

        scheduler._store.append = append_or_fail  # type: ignore[method-assign]
        caught_in_the_act = asyncio.create_task(client.submit(noop("during")))
        await wait_until_async(lambda: not scheduler.shell.healthy, SECONDS)
        with pytest.raises(Unavailable, match="store"):
            await client.submit(noop("refused"))
        assert not caught_in_the_act.done()
        failing.clear()
        assert await caught_in_the_act == ["during"]
        await wait_until_async(lambda: scheduler.shell.healthy, SECONDS)
        assert await client.submit(noop("after")) == ["after"]


async def test_a_cancellation_that_cannot_be_recorded_is_not_sent_to_the_actor(tmp_path: Path) -> None:
    async with (
        scheduler_of(store={"kind": "sqlite", "path": tmp_path / "s.sqlite"}) as scheduler,
        open_channel(scheduler.server.address) as channel,
    ):
        client, actor = Client(channel), RemoteActor(channel)
        await actor.connect(credits=1)
        await client.submit(noop("runs"))
        await actor.take()
        append, failing = scheduler._store.append, [True]

        def append_or_fail(batch: bytes, records: int) -> None:
            if failing:
                raise OSError("disk full")
            append(batch, records)

        scheduler._store.append = append_or_fail  # type: ignore[method-assign]
        noticed = asyncio.create_task(client.submit(noop("other")))
        await wait_until_async(lambda: not scheduler.shell.healthy, SECONDS)
        cancelling = asyncio.create_task(client.call("CancelTasks", pb.CancelTasksRequest(task_ids=["runs"])))
        await wait_until_async(lambda: scheduler.core.task("runs").final, SECONDS)
        await client.call("ListActors", pb.ListActorsRequest())
        assert actor.revoked == []
        failing.clear()
        await wait_until_async(lambda: actor.revoked == ["runs"], SECONDS)
        await asyncio.gather(cancelling, noticed)
        await actor.close()
