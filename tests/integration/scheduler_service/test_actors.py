"""Actors over real gRPC: their streams, what they return with, what operators tell them, and how they end."""

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


def token_file(folder: Path, *rows: tuple[str, str, str]) -> Path:
    """Rows of (name, role, secret)."""
    path = folder / "tokens.yaml"
    path.write_text(
        "".join(f"- {{name: {name}, role: {role}, sha256: {digest(secret)}}}\n" for name, role, secret in rows)
    )
    return path


async def test_one_node_neither_locks_another_out_nor_takes_over_its_actor(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, ("node-1", "actor", "one"), ("node-2", "actor", "two"), ("ops", "operator", "ops"))

    def channel(secret: str) -> Any:
        return open_channel(scheduler.server.address, SecurityConfig.model_validate({"token": secret}))

    settings = {"leases": {"heartbeat_seconds": 5.0, "duration_seconds": 60.0, "reconnect_seconds": 0.1}}
    async with (
        scheduler_of(security={"tokens": tokens}, **settings) as scheduler,
        channel("one") as one,
        channel("two") as two,
        channel("ops") as ops,
    ):
        client = Client(ops)
        owner = RemoteActor(two)
        await owner.connect("shared", node_id="node-2", incarnation=5)
        await client.submit(noop("t", placement=task_pb2.Placement(node_id="node-2")))
        (assignment,) = await owner.take()
        await owner.close()
        await wait_until_async(lambda: scheduler.core.task("t").losses == 1, SECONDS)
        thief = RemoteActor(one)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await thief.connect("shared", node_id="node-1", incarnation=(1 << 63) - 1, results=[result_of(assignment)])
        assert error_from_rpc(caught.value).reason == "ACTOR_OF_ANOTHER_NODE"
        assert (await client.get("t")).state == task_pb2.TASK_STATE_QUEUED
        # Its clock has gone back since.
        again = RemoteActor(two)
        await again.connect("shared", node_id="node-2", incarnation=4, credits=1)
        await again.answer(*await again.take())
        (outcome,) = await client.outcomes(["t"])
        assert outcome.state == task_pb2.TASK_STATE_SUCCEEDED
        await thief.close()
        await again.close()


@pytest.mark.parametrize(
    "hello",
    [
        {"actor_id": "a" * 20_000},
        {"actor_id": "a\nb"},
        {"node_id": "n" * 20_000},
        {"node_id": "n\x1b[2J"},
        {"incarnation": 1 << 63},
        {"incarnation": (1 << 64) - 1},
        {"slots": 0},
        {"slots": (1 << 32) - 1},
        {"kinds": []},
        {"kinds": [str(number) for number in range(10_000)]},
        {"kinds": ["k" * 20_000]},
        {"labels": {str(number): "" for number in range(10_000)}},
        {"labels": {"zone": "z" * 20_000}},
    ],
)
async def test_an_invalid_actor_is_refused_at_once_and_affects_nobody_else(
    client: Client, make_actor: Make, hello: dict[str, Any]
) -> None:
    honest = await make_actor("honest")
    odd = RemoteActor(client.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await odd.connect(**{"actor_id": "odd", **hello})
    assert isinstance(error_from_rpc(caught.value), InvalidInput)
    await client.submit(noop("t"))
    await honest.answer(*await honest.take())
    assert len(await client.outcomes(["t"])) == 1
    listed = (await client.call("ListActors", pb.ListActorsRequest())).actors
    assert [actor.actor_id for actor in listed] == ["honest"]
    assert len((await client.call("ListTasks", pb.ListTasksRequest())).tasks) == 1
    await odd.close()


async def test_an_actor_may_speak_only_for_its_own_node(tmp_path: Path) -> None:
    tokens = token_file(
        tmp_path,
        ("node-1", "actor", "actor-secret"),
        ("ops", "operator", "operator-secret"),
        ("eye", "reader", "reader-secret"),
    )

    async def connect(address: str, secret: str, node_id: str) -> FleetError | None:
        security = SecurityConfig.model_validate({"token": secret})
        async with open_channel(address, security) as channel:
            stub: Any = FleetServiceStub(channel)
            call = stub.Connect()
            try:
                await call.write(
                    fleet_pb.ConnectRequest(
                        hello=fleet_pb.Hello(actor_id=f"{node_id}-1", node_id=node_id, slots=1, kinds=["noop"])
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


async def test_a_node_in_quarantine_is_listed_with_the_reason_until_it_is_resumed() -> None:
    async with (
        scheduler_of(strikes={"limit": 2}) as scheduler,
        open_channel(scheduler.server.address) as channel,
        open_channel(scheduler.server.address) as another,
    ):
        client = Client(channel)

        async def list_one() -> pb.Actor:
            (actor,) = (await client.call("ListActors", pb.ListActorsRequest())).actors
            assert isinstance(actor, pb.Actor)
            return actor

        for strikes in (1, 2):
            # Unreadable bytes, then a message that claims too much: each ends only its own stream.
            call: Any = another.stream_stream("/parlmesh.v1.FleetService/Connect")(timeout=SECONDS)
            hello = fleet_pb.Hello(actor_id="a", node_id="n", slots=1, kinds=["noop"], incarnation=strikes)
            await call.write(fleet_pb.ConnectRequest(hello=hello).SerializeToString())
            await call.read()
            await call.write(b"\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert error_from_rpc(caught.value).reason == "MALFORMED_MESSAGE"
            assert (await list_one()).strikes == strikes % 2
        bad = RemoteActor(another)
        await bad.connect("a", node_id="n", incarnation=3)
        listed = await list_one()
        assert listed.state == pb.ACTOR_STATE_QUARANTINED
        assert listed.quarantine_reason == "2 strikes, the last: a message of 3 bytes cannot be parsed"
        await client.submit(noop("t"))
        explanation = (await client.call("ExplainTask", pb.ExplainTaskRequest(task_id="t"))).explanation
        assert explanation == "no READY actor has the kind noop; 1 that could is quarantined"
        command = pb.UpdateActorsRequest(node_ids=["n"], command=pb.ACTOR_COMMAND_RESUME)
        (resumed,) = (await client.call("UpdateActors", command)).actors
        assert (resumed.state, resumed.strikes) == (pb.ACTOR_STATE_READY, 0)
        await bad.take()
        command = pb.UpdateActorsRequest(actor_ids=["a"], command=pb.ACTOR_COMMAND_QUARANTINE, reason="it lies")
        (again,) = (await client.call("UpdateActors", command)).actors
        assert again.quarantine_reason == "it lies"
        await wait_until_async(lambda: bad.revoked == ["t"], SECONDS)
        await bad.close()
