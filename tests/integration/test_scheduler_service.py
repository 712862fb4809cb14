"""The scheduler over real gRPC, in this process on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.config import ListenConfig
from parlmesh.errors import (
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.security import SecurityConfig
from parlmesh.security.tokens import digest
from parlmesh.testing import wait_until_async
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler.build import Scheduler
from scheduler.config import SchedulerConfig

SECONDS = 20.0
ROOT = Path(__file__).parents[2]


class RemoteActor:
    """An actor in the test's hands: it holds what it gets until told to answer."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = FleetServiceStub(channel)
        self.held: list[fleet_pb.Assignment] = []
        self.revoked: list[str] = []
        self.acknowledged: list[str] = []
        self.commands: list[int] = []
        self.welcome = fleet_pb.Welcome()
        self.error: FleetError | None = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None

    async def connect(
        self, actor_id: str = "a", *, credits: int = 1, leases: Any = (), results: Any = (), **hello: Any
    ) -> None:
        details = {"kinds": ["noop"], "slots": 1, "incarnation": 1, "node_id": "node", **hello}
        self._call = self._stub.Connect()
        await self.send(
            hello=fleet_pb.Hello(actor_id=actor_id, leases=leases, **details), credits=credits, results=results
        )
        response = await asyncio.wait_for(self._call.read(), SECONDS)
        self.welcome = response.welcome
        self._take(response)
        self._reader = asyncio.create_task(self._read())

    async def send(self, **message: Any) -> None:
        await self._call.write(fleet_pb.ConnectRequest(**message))

    async def answer(self, *assignments: fleet_pb.Assignment, credits: int | None = None) -> None:
        results = [result_of(assignment) for assignment in assignments]
        await self.send(results=results, credits=len(results) if credits is None else credits)

    async def take(self, count: int = 1) -> list[fleet_pb.Assignment]:
        """Waits for so many assignments and takes them out of `held`."""
        await wait_until_async(lambda: len(self.held) >= count, SECONDS)
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=SECONDS)

    async def _read(self) -> None:
        try:
            while isinstance(response := await self._call.read(), fleet_pb.ConnectResponse):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            self.error = error_from_rpc(error)
        except asyncio.CancelledError:
            return

    def _take(self, response: fleet_pb.ConnectResponse) -> None:
        self.held += response.assignments
        self.revoked += [lease.task_id for lease in response.revoked]
        self.acknowledged += [lease.task_id for lease in response.acknowledged]
        if response.command:
            self.commands.append(response.command)


def result_of(assignment: fleet_pb.Assignment) -> fleet_pb.TaskResult:
    result = fleet_pb.TaskResult(lease=assignment.lease, ran=Duration(nanos=1_000_000))
    result.result.CopyFrom(assignment.payload)
    return result


class Client:
    """Calls with a deadline, errors in the fleet's own words."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub: Any = SchedulerServiceStub(channel)

    async def call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self.stub, method)(request, timeout=SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None

    async def submit(self, *tasks: task_pb2.TaskSpec) -> list[str]:
        return list((await self.call("SubmitTasks", pb.SubmitTasksRequest(tasks=tasks))).task_ids)

    async def get(self, task_id: str) -> task_pb2.Task:
        task: task_pb2.Task = (await self.call("GetTask", pb.GetTaskRequest(task_id=task_id))).task
        return task

    async def outcomes(self, task_ids: list[str]) -> list[task_pb2.Outcome]:
        found: list[task_pb2.Outcome] = []
        try:
            async for response in self.stub.WatchTasks(pb.WatchTasksRequest(task_ids=task_ids), timeout=SECONDS):
                found += response.outcomes
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        return found

    async def statistics(self) -> pb.GetStatisticsResponse:
        answer: pb.GetStatisticsResponse = await self.call("GetStatistics", pb.GetStatisticsRequest())
        return answer


def noop(task_id: str = "", **fields: Any) -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(task_id=task_id, kind="noop", **fields)


@asynccontextmanager
async def scheduler_of(**settings: Any) -> AsyncIterator[Scheduler]:
    """A whole scheduler in this process."""
    config = SchedulerConfig.model_validate(
        {
            "listen": ListenConfig(drain_seconds=0.2).model_dump(),
            "metrics": {"port": None},
            "store": {"kind": "memory"},
            **settings,
        }
    )
    scheduler = Scheduler(config)
    stop = asyncio.Event()
    await scheduler.start()
    ticking = asyncio.create_task(scheduler.shell.run(stop))
    try:
        yield scheduler
    finally:
        stop.set()
        await ticking
        await scheduler.stop()


@pytest.fixture(params=["memory", "sqlite"])
async def scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scheduler]:
    store = {"kind": request.param, "path": tmp_path / "s.sqlite"}
    async with scheduler_of(store=store, queue={"max_tasks": 50, "max_payload_bytes": 1000}) as scheduler:
        yield scheduler


@pytest.fixture
async def client(scheduler: Scheduler) -> AsyncIterator[Client]:
    async with open_channel(scheduler.server.address) as channel:
        yield Client(channel)


@pytest.fixture
async def make_actor(client: Client) -> AsyncIterator[Callable[..., Awaitable[RemoteActor]]]:
    actors: list[RemoteActor] = []

    async def make(actor_id: str = "a", **hello: Any) -> RemoteActor:
        actor = RemoteActor(client.channel)
        actors.append(actor)
        await actor.connect(actor_id, **hello)
        return actor

    yield make
    for actor in actors:
        await actor.close()


Make = Callable[..., Awaitable[RemoteActor]]


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


async def test_a_message_that_is_no_request_is_refused_and_the_stream_goes_on(client: Client) -> None:
    call: Any = client.channel.stream_stream("/parlmesh.v1.SchedulerService/SubmitTaskStream")(timeout=SECONDS)
    await call.write(b"\xff\xff\xff")
    await call.write(pb.SubmitTaskStreamRequest(tasks=[noop("a")]).SerializeToString())
    await call.done_writing()
    receipts = [status async for data in call for status in pb.SubmitTaskStreamResponse.FromString(data).receipts]
    assert [status.code for status in receipts] == [grpc.StatusCode.INVALID_ARGUMENT.value[0], 0]
    assert receipts[0].message == "a message of 3 bytes cannot be parsed"


async def test_a_stream_gives_receipts_and_the_outcomes_of_the_submitter_it_follows(
    client: Client, make_actor: Make
) -> None:
    actor = await make_actor(credits=2, slots=2)
    call: Any = client.stub.SubmitTaskStream(timeout=SECONDS)
    await call.write(pb.SubmitTaskStreamRequest(follow="me"))
    assert [status.code for status in (await call.read()).receipts] == [0]
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


async def test_a_full_queue_says_when_to_come_back(client: Client) -> None:
    await client.submit(*[noop() for _ in range(50)])
    with pytest.raises(ResourceExhausted) as caught:
        await client.submit(noop())
    assert caught.value.retry_after_seconds > 0


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
