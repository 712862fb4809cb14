"""Actors over real gRPC: their streams, what they come back with, what operators tell them, and how they end."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.errors import FleetError, InvalidInput, NotFound, PermissionDenied, Unauthenticated, Unavailable
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.security import SecurityConfig
from parlmesh.security.tokens import digest
from parlmesh.testing import wait_until_async
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub
from tests.integration.scheduler_service.conftest import (
    SECONDS,
    Client,
    Make,
    RemoteActor,
    noop,
    result_of,
    scheduler_of,
)


async def test_cancelling_stops_a_running_task_on_its_actor(client: Client, make_actor: Make) -> None:
    actor = await make_actor()
    await client.submit(noop("t"))
    await actor.take()
    answer = await client.call("CancelTasks", pb.CancelTasksRequest(task_ids=["t"]))
    assert list(answer.cancelled_task_ids) == ["t"]
    await wait_until_async(lambda: actor.revoked == ["t"], SECONDS)
    (outcome,) = await client.outcomes(["t"])
    assert (outcome.state, outcome.failure.reason) == (task_pb2.TASK_STATE_CANCELLED, "CANCELLED")


async def test_an_actor_that_comes_back_keeps_its_lease_and_resends_its_result(
    client: Client, make_actor: Make
) -> None:
    actor = await make_actor(slots=2, credits=2)
    await client.submit(noop("running"), noop("done"))
    running, done = await actor.take(2)
    await actor.close()
    again = await make_actor(slots=2, credits=0, leases=[running.lease], results=[result_of(done)])
    assert {lease.task_id for lease in again.welcome.leases} == {"running", "done"}
    await again.answer(running)
    outcomes = await client.outcomes(["running", "done"])
    assert {outcome.task_id: outcome.attempts for outcome in outcomes} == {"running": 1, "done": 1}
    await wait_until_async(lambda: sorted(again.acknowledged) == ["done", "running"], SECONDS)


async def test_a_result_sent_twice_counts_once_and_is_acknowledged_twice(client: Client, make_actor: Make) -> None:
    actor = await make_actor()
    await client.submit(noop("t"))
    (assignment,) = await actor.take()
    await actor.answer(assignment)
    await actor.answer(assignment, credits=0)
    await wait_until_async(lambda: actor.acknowledged == ["t", "t"], SECONDS)
    statistics = await client.statistics()
    assert (statistics.completed_tasks, statistics.stale_results) == (1, 1)


async def test_a_second_start_of_an_actor_replaces_the_first(client: Client, make_actor: Make) -> None:
    first = await make_actor(incarnation=1)
    await make_actor(incarnation=2)
    await wait_until_async(lambda: first.error is not None, SECONDS)
    assert isinstance(first.error, Unavailable)
    assert first.error.reason == "STREAM_REPLACED"
    late = RemoteActor(client.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await late.connect(incarnation=1)
    assert error_from_rpc(caught.value).reason == "OLD_INCARNATION"
    await late.close()
    (actor,) = (await client.call("ListActors", pb.ListActorsRequest())).actors
    assert (actor.incarnation, actor.state) == (2, pb.ACTOR_STATE_READY)


async def test_operators_pause_resume_and_drain(client: Client, make_actor: Make) -> None:
    actor = await make_actor()
    command = pb.UpdateActorsRequest(actor_ids=["a"], command=pb.ACTOR_COMMAND_PAUSE)
    (paused,) = (await client.call("UpdateActors", command)).actors
    assert paused.state == pb.ACTOR_STATE_PAUSED
    await client.submit(noop("t"))
    explanation = (await client.call("ExplainTask", pb.ExplainTaskRequest(task_id="t"))).explanation
    assert explanation == "no READY actor has the kind noop; 1 that could is paused"
    command.command = pb.ACTOR_COMMAND_RESUME
    await client.call("UpdateActors", command)
    await actor.take()
    command.command = pb.ACTOR_COMMAND_DRAIN
    (draining,) = (await client.call("UpdateActors", command)).actors
    assert draining.state == pb.ACTOR_STATE_DRAINING
    await wait_until_async(lambda: actor.commands == [1, 2, 4], SECONDS)
    with pytest.raises(NotFound, match="stranger"):
        await client.call(
            "UpdateActors", pb.UpdateActorsRequest(actor_ids=["stranger"], command=pb.ACTOR_COMMAND_PAUSE)
        )
    with pytest.raises(InvalidInput, match="command 0 is unknown"):
        await client.call("UpdateActors", pb.UpdateActorsRequest(actor_ids=["a"]))


async def test_a_stream_without_hello_is_refused(client: Client) -> None:
    stub: Any = FleetServiceStub(client.channel)
    call = stub.Connect()
    await call.write(fleet_pb.ConnectRequest(credits=5))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert error_from_rpc(caught.value).reason == "MISSING_HELLO"


async def test_stopping_ends_streams_at_once_and_refuses_new_tasks() -> None:
    async with scheduler_of() as scheduler, open_channel(scheduler.server.address) as channel:
        actor = RemoteActor(channel)
        await actor.connect()
        watch = Client(channel).stub.WatchTasks(pb.WatchTasksRequest(submitter="me"), timeout=SECONDS)
        await watch.initial_metadata()
        scheduler.shell.close()
        await wait_until_async(lambda: actor.error is not None, SECONDS)
        assert actor.error is not None
        assert actor.error.reason == "STOPPING"
        with pytest.raises(grpc.aio.AioRpcError):
            await watch.read()
        with pytest.raises(Unavailable):
            await Client(channel).submit(noop())
        await actor.close()


async def test_an_actor_may_speak_only_for_its_own_node(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    rows = [
        ("node-1", "actor", "actor-secret"),
        ("ops", "operator", "operator-secret"),
        ("eye", "reader", "reader-secret"),
    ]
    tokens.write_text(
        "".join(f"- {{name: {name}, role: {role}, sha256: {digest(secret)}}}\n" for name, role, secret in rows)
    )

    async def connect(address: str, secret: str, node_id: str) -> FleetError | None:
        security = SecurityConfig.model_validate({"token": secret})
        async with open_channel(address, security) as channel:
            stub: Any = FleetServiceStub(channel)
            call = stub.Connect()
            try:
                await call.write(
                    fleet_pb.ConnectRequest(
                        hello=fleet_pb.Hello(actor_id="a", node_id=node_id, slots=1, kinds=["noop"])
                    )
                )
                assert (await call.read()).HasField("welcome")
            except grpc.aio.AioRpcError as error:
                return error_from_rpc(error)
            finally:
                call.cancel()
        return None

    async with scheduler_of(security={"tokens": tokens}) as scheduler:
        address = scheduler.server.address
        assert await connect(address, "actor-secret", "node-1") is None
        wrong_node = await connect(address, "actor-secret", "node-2")
        assert isinstance(wrong_node, PermissionDenied)
        assert "node-2" in wrong_node.message
        assert await connect(address, "operator-secret", "node-2") is None
        assert isinstance(await connect(address, "reader-secret", "node-1"), PermissionDenied)
        assert isinstance(await connect(address, "no-such-secret", "node-1"), Unauthenticated)
