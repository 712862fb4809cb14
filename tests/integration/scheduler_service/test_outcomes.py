"""Outcomes over real gRPC: streams that follow a submitter, watches, lists and the trace."""

import asyncio
import json
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.errors import InvalidInput, NotFound
from parlmesh.testing import wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from tests.integration.scheduler_service.conftest import SECONDS, Client, Make, noop


async def test_a_stream_gives_receipts_and_the_outcomes_of_the_submitter_it_follows(
    client: Client, make_actor: Make
) -> None:
    actor = await make_actor(credits=2, slots=2)
    call: Any = client.stub.SubmitTaskStream(timeout=SECONDS)
    await call.write(pb.SubmitTaskStreamRequest(follow="me"))
    first = await call.read()
    assert [status.code for status in first.receipts] == [0]
    assert first.terms.memory_id
    assert (first.terms.remembers.seconds, first.terms.message_bytes) == (3600, 8 << 20)
    others = [noop("x", submitter="you")]
    await call.write(pb.SubmitTaskStreamRequest(tasks=[noop("a", submitter="me"), *others], patient=True))
    await actor.answer(*await actor.take(2))
    receipts: list[int] = []
    outcomes: list[str] = []
    while not receipts or not outcomes:
        response = await call.read()
        receipts += [status.code for status in response.receipts]
        outcomes += [outcome.task_id for outcome in response.outcomes]
    assert (receipts, outcomes) == ([0], ["a"])
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_a_receipt_that_nobody_waits_for_comes_alone_when_no_outcome_does(client: Client) -> None:
    call: Any = client.stub.SubmitTaskStream(timeout=SECONDS)
    await call.write(pb.SubmitTaskStreamRequest(tasks=[noop("a")], patient=True))
    assert [status.code for status in (await call.read()).receipts] == [0]
    call.cancel()


async def test_a_stream_follows_one_submitter_and_refuses_a_request_that_names_another_whole(client: Client) -> None:
    call: Any = client.stub.SubmitTaskStream(timeout=SECONDS)
    await call.write(pb.SubmitTaskStreamRequest(follow="me"))
    await call.read()
    await call.write(pb.SubmitTaskStreamRequest(follow="you", tasks=[noop("a")]))
    (status,) = (await call.read()).receipts
    assert (status.code, status.message) == (
        grpc.StatusCode.INVALID_ARGUMENT.value[0],
        "follow is given twice; a stream follows one submitter",
    )
    assert not (await client.call("ListTasks", pb.ListTasksRequest())).tasks
    call.cancel()


async def test_a_watch_names_the_tasks_it_does_not_know_when_asked_to(client: Client) -> None:
    await client.call("SubmitTasks", pb.SubmitTasksRequest(tasks=[noop("a")]))
    await client.call("CancelTasks", pb.CancelTasksRequest(task_ids=["a"]))
    for asked, unknown, ended in ((["x", "a", "y"], ["x", "y"], ["a"]), (["x"], ["x"], [])):
        request = pb.WatchTasksRequest(task_ids=asked, skip_unknown=True)
        seen: tuple[list[str], list[str]] = ([], [])
        async for response in client.stub.WatchTasks(request, timeout=SECONDS):
            seen[0].extend(response.unknown_task_ids)
            seen[1].extend(outcome.task_id for outcome in response.outcomes)
        assert seen == (unknown, ended)


async def test_a_watch_of_a_submitter_misses_nothing_after_its_first_metadata(client: Client, make_actor: Make) -> None:
    actor = await make_actor(credits=10, slots=10)
    watch = client.stub.WatchTasks(pb.WatchTasksRequest(submitter="me"), timeout=SECONDS)
    await watch.initial_metadata()
    await client.submit(*[noop(str(number), submitter="me") for number in range(5)], noop("x", submitter="you"))
    await actor.answer(*await actor.take(6))
    seen: list[str] = []
    while len(seen) < 5:
        response = await watch.read()
        seen += [outcome.task_id for outcome in response.outcomes]
    assert sorted(seen) == ["0", "1", "2", "3", "4"]
    watch.cancel()


async def test_a_watch_by_id_answers_finished_tasks_first_and_ends(client: Client, make_actor: Make) -> None:
    actor = await make_actor()
    await client.submit(noop("1"), noop("2"))
    await actor.answer(*await actor.take())
    await wait_until_async(lambda: len(actor.held) == 1, SECONDS)
    watching = asyncio.create_task(client.outcomes(["1", "2", "1"]))
    await actor.answer(*await actor.take())
    assert [outcome.task_id for outcome in await watching] == ["1", "2"]
    with pytest.raises(NotFound, match="stranger"):
        await client.outcomes(["1", "stranger"])


async def test_lists_rebalance_and_trace_answer(client: Client, make_actor: Make) -> None:
    actor = await make_actor()
    await client.submit(noop("1"), noop("2"))
    await actor.answer(*await actor.take())
    await client.outcomes(["1"])
    listed = await client.call("ListTasks", pb.ListTasksRequest())
    assert [task.spec.task_id for task in listed.tasks] == ["2", "1"]
    assert (await client.call("RebalanceTasks", pb.RebalanceTasksRequest())).moved_tasks == 0
    trace = json.loads((await client.call("GetTrace", pb.GetTraceRequest())).trace_json)
    assert [event["args"]["task_id"] for event in trace["traceEvents"] if event["ph"] == "X"] == ["1"]


async def test_a_page_asks_for_the_newest_few_attempts_and_for_the_tasks_of_one_job(
    client: Client, make_actor: Make
) -> None:
    actor = await make_actor()
    await client.submit(noop("job/1"), noop("job/2"), noop("other"))
    for _ in range(3):
        await actor.answer(*await actor.take())
    await client.outcomes(["job/1", "job/2", "other"])

    async def traced(**wanted: Any) -> list[str]:
        answer = await client.call("GetTrace", pb.GetTraceRequest(**wanted))
        return [event["args"]["task_id"] for event in json.loads(answer.trace_json)["traceEvents"] if "ts" in event]

    assert await traced(max_attempts=1) == ["other"]
    assert sorted(await traced(task_id_prefix="job/")) == ["job/1", "job/2"]
    listed = await client.call("ListTasks", pb.ListTasksRequest(task_id_prefix="job/"))
    assert [task.spec.task_id for task in listed.tasks] == ["job/2", "job/1"]
    with pytest.raises(InvalidInput, match="max_attempts is 20001; it must be 0 to 20000"):
        await traced(max_attempts=20_001)


async def test_statistics_tell_what_is_queued_by_priority(client: Client) -> None:
    urgent = noop("urgent")
    urgent.priority = task_pb2.PRIORITY_CRITICAL
    await client.submit(urgent, noop("1"), noop("2"))
    statistics = await client.call("GetStatistics", pb.GetStatisticsRequest())
    assert {name: count for name, count in statistics.queued_by_priority.items() if count} == {
        "critical": 1,
        "normal": 2,
    }
    assert statistics.oldest_queued_seconds > 0
