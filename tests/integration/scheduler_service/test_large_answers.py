"""Lists over real gRPC: no task or actor makes an answer too large, and no page token causes an internal error."""

import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.errors import InvalidInput
from parlmesh.rpc import open_channel, pages
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from scheduler.wire import queries
from tests.integration.scheduler_service.conftest import Client, Make, RemoteActor, noop, scheduler_of

LARGE_LABELS = {f"{number}-{'k' * 100}": "v" * 100 for number in range(32)}
LARGE_KINDS = [f"{number}-{'k' * 100}" for number in range(64)]


async def test_actors_with_large_labels_are_listed_in_pages_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_ANSWER_BYTES", 360_000)
    async with scheduler_of() as scheduler, open_channel(scheduler.server.address) as channel:
        client, actors = Client(channel), [RemoteActor(channel) for _ in range(60)]
        names = [f"a{number:03}" for number in range(60)]
        for name, actor in zip(names, actors, strict=True):
            await actor.connect(name, labels=LARGE_LABELS, kinds=["noop", *LARGE_KINDS])
        found, answers = [], 0
        async for page in pages(client.stub.ListActors, pb.ListActorsRequest()):
            answers += 1
            assert page.ByteSize() < 450_000
            found += [actor.actor_id for actor in page.actors]
        assert answers > 1
        assert found == names
        small = pb.ListActorsRequest(page_size=25)
        assert [len(page.actors) async for page in pages(client.stub.ListActors, small)] == [25, 25, 10]
        for actor in actors:
            await actor.close()


async def test_tasks_with_large_failures_and_many_dependencies_are_listed_in_pages_that_fit() -> None:
    async with scheduler_of() as scheduler, open_channel(scheduler.server.address) as channel:
        client, actor = Client(channel), RemoteActor(channel)
        await actor.connect(slots=10, credits=10)
        parents = [f"{number}-{'p' * 200}" for number in range(3000)]
        await client.submit(*[noop(name) for name in parents])
        names = [f"child-{number}" for number in range(12)]
        for name in names:
            await client.submit(noop(name, dependencies=parents))
        (assignment,) = await actor.take()
        failure = task_pb2.Failure(reason="R" * 10_000, message="m" * 5_000_000)
        await actor.send(results=[fleet_pb.TaskResult(lease=assignment.lease, failure=failure)])
        found: list[str] = []
        async for page in pages(client.stub.ListTasks, pb.ListTasksRequest(page_size=1000)):
            assert page.ByteSize() < 4 * 1024 * 1024
            found += [task.spec.task_id for task in page.tasks]
        assert found == [*reversed(names), *reversed(parents)]
        (outcome,) = await client.outcomes([assignment.lease.task_id])
        assert (len(outcome.failure.reason), len(outcome.failure.message)) == (128, 4096)
        await actor.close()


@pytest.mark.parametrize("token", ["²", "9" * 5000, "-1", "x", "१", "1.0", "\n", "00000000-a"])
async def test_an_invented_page_token_is_the_callers_error(client: Client, token: str) -> None:
    for method, request in (("ListTasks", pb.ListTasksRequest), ("ListActors", pb.ListActorsRequest)):
        with pytest.raises(InvalidInput, match="page_token") as caught:
            await client.call(method, request(page_token=token))
        assert caught.value.reason == "INVALID_PAGE_TOKEN"


@pytest.mark.parametrize("field", ["run_timeout", "queue_timeout"])
async def test_an_absurd_duration_is_refused_and_lists_still_work(client: Client, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await client.submit(noop("t", **{field: Duration(seconds=(1 << 63) - 1)}))
    assert caught.value.reason == "INVALID_TIMEOUT"
    assert not (await client.call("ListTasks", pb.ListTasksRequest())).tasks


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "a\u202eb", "\x00"])
async def test_an_unprintable_name_is_refused(client: Client, make_actor: Make, name: str) -> None:
    await make_actor()
    for spec in (noop(name), noop("t", submitter=name), task_pb2.TaskSpec(task_id="t", kind=name)):
        with pytest.raises(InvalidInput) as caught:
            await client.submit(spec)
        assert caught.value.reason == "UNPRINTABLE"
        assert name not in caught.value.message


async def test_more_ids_than_a_request_may_name_are_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="task_ids"):
        await client.call("CancelTasks", pb.CancelTasksRequest(task_ids=[str(number) for number in range(10_001)]))
    with pytest.raises(InvalidInput, match="task_ids"):
        await client.outcomes([str(number) for number in range(200_000)])
