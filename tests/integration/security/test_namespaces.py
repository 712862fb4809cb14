"""Two teams on one scheduler: neither can read, follow, cancel or depend on the other's tasks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.config import ListenConfig, MetricsConfig
from parlmesh.rpc import error_from_rpc, error_from_status, open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.tokens import write_token
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler.build import Scheduler
from scheduler.config import NamespaceConfig, SchedulerConfig, StoreConfig

SECONDS = 60.0


@pytest.fixture
async def as_(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Makes a stub of the scheduler for an identity: `as_("ada", "team-a")`."""
    for name, namespace in (("ada", "team-a"), ("bob", "team-b"), ("eve", "team-a-but-not"), ("root", "")):
        write_token(tmp_path, name, Role.OPERATOR, force=False, namespace=namespace)
        write_token(tmp_path, f"{name}-reads", Role.READER, force=False, namespace=namespace)
    scheduler = Scheduler(
        SchedulerConfig(
            listen=ListenConfig(drain_seconds=0.2),
            metrics=MetricsConfig(port=None),
            store=StoreConfig(kind="memory"),
            security=SecurityConfig(tokens=tmp_path / "tokens.yaml"),
            namespaces={"team-b": NamespaceConfig(max_priority="critical", max_run_seconds=10.0)},
        )
    )
    stop = asyncio.Event()
    await scheduler.start()
    running = asyncio.ensure_future(scheduler.shell.run(stop))
    async with AsyncExitStack() as stack:

        async def stub(name: str) -> Any:
            security = SecurityConfig(token_file=tmp_path / f"{name}.token")
            return SchedulerServiceStub(
                await stack.enter_async_context(open_channel(scheduler.server.address, security))
            )

        yield stub
    stop.set()
    await running
    await scheduler.stop()


async def submit(stub: Any, task_id: str, **fields: Any) -> None:
    tasks = [task_pb2.TaskSpec(task_id=task_id, kind="noop", **fields)]
    await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=SECONDS)


async def reason(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).reason
    return ""


async def listed(stub: Any) -> set[str]:
    answer = await stub.ListTasks(pb.ListTasksRequest(), timeout=SECONDS)
    return {task.spec.task_id for task in answer.tasks}


async def test_each_team_sees_its_own_tasks_and_the_fleet_s_operator_all(as_: Any) -> None:
    ada, bob, eve, root = await as_("ada"), await as_("bob"), await as_("eve"), await as_("root")
    await submit(ada, "a")
    await submit(bob, "b")
    await submit(root, "r")
    await submit(eve, "e")
    assert await listed(ada) == {"a"}
    assert await listed(bob) == {"b"}
    assert await listed(eve) == {"e"}
    assert await listed(root) == {"a", "b", "r", "e"}
    assert await listed(await as_("ada-reads")) == {"a"}
    for stranger in (bob, eve, await as_("bob-reads")):
        for call in (
            stranger.GetTask(pb.GetTaskRequest(task_id="a"), timeout=SECONDS),
            stranger.ExplainTask(pb.ExplainTaskRequest(task_id="a"), timeout=SECONDS),
            stranger.WatchTasks(pb.WatchTasksRequest(task_ids=["a"]), timeout=SECONDS).read(),
        ):
            assert await reason(call) == "UNKNOWN_TASK"
    assert await reason(bob.CancelTasks(pb.CancelTasksRequest(task_ids=["b", "a"]), timeout=SECONDS)) == "UNKNOWN_TASK"
    for call in (
        ada.GetTask(pb.GetTaskRequest(task_id="a"), timeout=SECONDS),
        root.GetTask(pb.GetTaskRequest(task_id="a"), timeout=SECONDS),
        ada.CancelTasks(pb.CancelTasksRequest(task_ids=["a"]), timeout=SECONDS),
    ):
        assert await reason(call) == ""


async def test_a_hidden_task_is_refused_in_the_same_words_as_a_missing_one(as_: Any) -> None:
    ada, bob = await as_("ada"), await as_("bob")
    await submit(ada, "hidden")
    details = []
    for task_id in ("hidden", "nobody"):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await bob.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=SECONDS)
        details.append((error.value.code(), (error.value.details() or "").replace(task_id, "")))
    assert details[0] == details[1]


async def test_somebody_else_s_task_id_is_refused_and_one_s_own_may_be_resubmitted(as_: Any) -> None:
    ada, bob = await as_("ada"), await as_("bob")
    await submit(ada, "taken")
    tasks = [task_pb2.TaskSpec(task_id=name, kind="noop") for name in ("fresh", "taken")]
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await bob.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=SECONDS)
    assert (error.value.code(), error_from_rpc(error.value).reason) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "TASK_ID_TAKEN",
    )
    assert "team-a" not in f"{error.value.details()}{error.value.trailing_metadata()}"
    assert await listed(bob) == set()
    stream = bob.SubmitTaskStream(iter([pb.SubmitTaskStreamRequest(tasks=tasks)]), timeout=SECONDS)
    (receipt,) = [receipt async for answer in stream for receipt in answer.receipts]
    assert error_from_status(receipt).reason == "TASK_ID_TAKEN"
    await submit(ada, "taken")
    assert await listed(ada) == {"taken"}


async def test_a_namespace_asks_for_no_more_than_its_operator_allows(as_: Any) -> None:
    ada, bob, root = await as_("ada"), await as_("bob"), await as_("root")
    critical, high = task_pb2.PRIORITY_CRITICAL, task_pb2.PRIORITY_HIGH
    assert await reason(submit(ada, "a", priority=critical)) == "PRIORITY_NOT_ALLOWED"
    assert await reason(submit(ada, "a", run_timeout=Duration(seconds=86_401))) == "RUN_TIMEOUT_NOT_ALLOWED"
    assert await reason(submit(bob, "b", run_timeout=Duration(seconds=11))) == "RUN_TIMEOUT_NOT_ALLOWED"
    assert await listed(root) == set()
    await submit(ada, "a", priority=high, run_timeout=Duration(seconds=86_400))
    await submit(bob, "b", priority=critical, run_timeout=Duration(seconds=10))
    await submit(root, "r", priority=critical, run_timeout=Duration(seconds=30 * 86_400))
    # Nobody may ask for an endless run; known tasks are not checked again.
    assert await reason(submit(root, "q", run_timeout=Duration(seconds=31 * 86_400))) == "INVALID_TIMEOUT"
    await submit(ada, "a", priority=critical)


async def test_a_claimed_submitter_stays_in_the_namespace(as_: Any) -> None:
    bob, root = await as_("bob"), await as_("root")
    for task_id, claimed in (("plain", "ada"), ("forged", "team-a/ada"), ("own", "team-b/lab")):
        await submit(bob, task_id, submitter=claimed)
    assert await listed(bob) == {"plain", "forged", "own"}
    assert await listed(await as_("ada")) == set()
    answer = await root.ListTasks(pb.ListTasksRequest(), timeout=SECONDS)
    assert {task.spec.task_id: task.spec.submitter for task in answer.tasks} == {
        "plain": "team-b/ada",
        "forged": "team-b/team-a/ada",
        "own": "team-b/lab",
    }


async def test_following_another_team_s_submitter_shows_nothing(as_: Any) -> None:
    ada, bob = await as_("ada"), await as_("bob")
    spying = bob.WatchTasks(pb.WatchTasksRequest(submitter="team-a/ada"), timeout=SECONDS)
    follow = pb.SubmitTaskStreamRequest(follow="team-a/ada")
    stream = bob.SubmitTaskStream(timeout=SECONDS)
    await stream.write(follow)
    await stream.read()
    await spying.initial_metadata()
    own = ada.WatchTasks(pb.WatchTasksRequest(), timeout=SECONDS)
    await own.initial_metadata()
    await submit(ada, "secret")
    await submit(bob, "b", submitter="team-a/ada")
    await ada.CancelTasks(pb.CancelTasksRequest(task_ids=["secret"]), timeout=SECONDS)
    await bob.CancelTasks(pb.CancelTasksRequest(task_ids=["b"]), timeout=SECONDS)
    assert [one.task_id for one in (await own.read()).outcomes] == ["secret"]
    assert [one.task_id for one in (await spying.read()).outcomes] == ["b"]
    seen = await stream.read()
    while not seen.outcomes:
        seen = await stream.read()
    assert [one.task_id for one in seen.outcomes] == ["b"]
    spying.cancel()
    own.cancel()
    stream.cancel()


async def test_a_task_cannot_wait_for_another_team_s(as_: Any) -> None:
    ada, bob = await as_("ada"), await as_("bob")
    await submit(ada, "secret")
    assert await reason(submit(bob, "b", dependencies=["secret"])) == "UNKNOWN_TASK"
    assert await listed(bob) == set()


async def test_calls_that_concern_the_whole_fleet_are_refused_to_a_namespace(as_: Any) -> None:
    ada = await as_("ada")
    for call in (
        ada.ListActors(pb.ListActorsRequest(), timeout=SECONDS),
        ada.GetStatistics(pb.GetStatisticsRequest(), timeout=SECONDS),
        ada.RebalanceTasks(pb.RebalanceTasksRequest(), timeout=SECONDS),
        ada.GetTrace(pb.GetTraceRequest(), timeout=SECONDS),
        ada.UpdateActors(pb.UpdateActorsRequest(), timeout=SECONDS),
    ):
        assert await reason(call) == "NAMESPACE_NOT_ALLOWED"
    reader = await as_("ada-reads")
    assert await reason(submit(reader, "x")) == "ROLE_NOT_ALLOWED"


@pytest.mark.parametrize("kind", ["rollout", "evaluate", "federated_fit", "federated_evaluate", "mapek_execute"])
async def test_tasks_of_the_learner_and_of_loops_are_refused_to_a_team(as_: Any, kind: str) -> None:
    """Such a task spends a node's privacy budget, changes its next update, or makes it import an environment."""
    team, fleet = await as_("ada"), await as_("root")
    request = pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(task_id="own", kind=kind)])
    assert await reason(team.SubmitTasks(request, timeout=SECONDS)) == "FLEET_KIND"
    assert await listed(fleet) == set()
    assert await reason(fleet.SubmitTasks(request, timeout=SECONDS)) != "FLEET_KIND"
    call = team.SubmitTaskStream(timeout=SECONDS)
    await call.write(pb.SubmitTaskStreamRequest(tasks=request.tasks))
    answer = await call.read()
    (receipt,) = answer.receipts
    assert error_from_status(receipt).reason == "FLEET_KIND"
    call.cancel()
