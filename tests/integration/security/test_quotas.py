"""Limits of one identity over real sockets: tasks, refusals, forbidden calls, oversized messages."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.config import ListenConfig, MetricsConfig
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.rpc.server import call_quotas as quotas_module
from parlmesh.rpc.server.metrics import REFUSED
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.quotas import QuotaConfig
from parlmesh.security.tokens import write_token
from parlmesh.testing import wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler.build import Scheduler
from scheduler.config import SchedulerConfig, StoreConfig
from tests.integration.security.conftest import LIST, SUBMIT

SECONDS = 60.0
As = Callable[[str], Any]
PEOPLE = (
    ("ada", Role.OPERATOR, "team-a"),
    ("amy", Role.OPERATOR, "team-a"),
    ("bob", Role.OPERATOR, "team-b"),
    ("root", Role.OPERATOR, ""),
    ("eve", Role.READER, ""),
    ("mallory", Role.ACTOR, ""),
)


@asynccontextmanager
async def scheduler(folder: Path, **quotas: float) -> AsyncIterator[As]:
    """Opens channels for given identities."""
    for name, role, namespace in PEOPLE:
        write_token(folder, name, role, force=True, namespace=namespace)
    security = SecurityConfig(tokens=folder / "tokens.yaml", quotas=QuotaConfig.model_validate(quotas))
    served = Scheduler(
        SchedulerConfig(
            listen=ListenConfig(drain_seconds=0.2),
            metrics=MetricsConfig(port=None),
            store=StoreConfig(kind="memory"),
            security=security,
        )
    )
    stop = asyncio.Event()
    await served.start()
    running = asyncio.ensure_future(served.shell.run(stop))
    async with AsyncExitStack() as stack:

        async def channel(name: str) -> Any:
            mine = SecurityConfig(token_file=folder / f"{name}.token")
            return await stack.enter_async_context(open_channel(served.server.address, mine))

        yield channel
    stop.set()
    await running
    await served.stop()


@pytest.fixture(autouse=True)
def _nobody_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "_HOLD_SECONDS", 0.0)


async def reason(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).reason
    return ""


async def submitted(channel: Any, *names: str, submitter: str = "") -> str:
    tasks = [task_pb2.TaskSpec(task_id=name, kind="noop", submitter=submitter) for name in names]
    stub: Any = SchedulerServiceStub(channel)
    return await reason(stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=SECONDS))


async def test_the_task_limit_of_a_namespace_covers_all_its_submitter_names(tmp_path: Path) -> None:
    async with scheduler(tmp_path, tasks=2) as as_:
        ada, amy, bob, root = await as_("ada"), await as_("amy"), await as_("bob"), await as_("root")
        assert await submitted(ada, "a1", submitter="x") == ""
        assert await submitted(amy, "a2") == ""
        assert await submitted(amy, "a3", submitter="y") == "TOO_MANY_OWN_TASKS"
        assert await submitted(bob, "b1", "b2") == ""
        assert await submitted(root, "r1", "r2", "r3", submitter="nobody") == "TOO_MANY_OWN_TASKS"
        assert await submitted(root, "r1", "r2", submitter="nobody") == ""
        stub: Any = SchedulerServiceStub(ada)
        await stub.CancelTasks(pb.CancelTasksRequest(task_ids=["a1"]), timeout=SECONDS)
        assert await submitted(amy, "a3") == ""


async def test_tasks_of_a_stream_count_and_the_stream_goes_on(tmp_path: Path) -> None:
    async with scheduler(tmp_path, tasks=1) as as_:
        stub: Any = SchedulerServiceStub(await as_("root"))
        stream = stub.SubmitTaskStream(timeout=SECONDS)
        found = []
        for name in ("a", "b", "a"):
            tasks = [task_pb2.TaskSpec(task_id=name, kind="noop")]
            await stream.write(pb.SubmitTaskStreamRequest(tasks=tasks))
            found += [receipt.code for receipt in (await stream.read()).receipts]
        assert found == [0, grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], 0]
        stream.cancel()


async def test_calls_that_a_role_may_not_make_count_as_calls_and_as_refusals(tmp_path: Path) -> None:
    async with scheduler(tmp_path, calls_per_second=0.5) as as_:
        mallory = await as_("mallory")
        seen = [await reason(mallory.unary_unary(SUBMIT)(b"", timeout=SECONDS)) for _ in range(7)]
        assert seen == ["ROLE_NOT_ALLOWED"] * 5 + ["TOO_MANY_CALLS"] * 2
    async with scheduler(tmp_path, refusals_per_second=0.4) as as_:
        mallory, eve = await as_("mallory"), await as_("eve")
        seen = [await reason(mallory.unary_unary(SUBMIT)(b"", timeout=SECONDS)) for _ in range(5)]
        assert seen == ["ROLE_NOT_ALLOWED"] * 4 + ["TOO_MANY_REFUSALS"]
        # So do malformed requests of permitted callers, and after them even correct calls.
        seen = [await reason(eve.unary_unary(LIST)(b"\xff", timeout=SECONDS)) for _ in range(4)]
        assert seen == ["MALFORMED_MESSAGE"] * 4
        assert await reason(eve.unary_unary(LIST)(b"", timeout=SECONDS)) == "TOO_MANY_REFUSALS"
        root = await as_("root")
        assert await reason(root.unary_unary(LIST)(b"", timeout=SECONDS)) == ""


async def test_a_refused_caller_that_does_not_wait_for_its_answer_is_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_module, "_BREATH_SECONDS", 3600.0)
    refused = REFUSED.labels("role_not_allowed")._value
    before = refused.get()
    async with scheduler(tmp_path) as as_:
        mallory = await as_("mallory")
        assert await reason(mallory.unary_unary(SUBMIT)(b"", timeout=SECONDS)) == "ROLE_NOT_ALLOWED"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            # It would wait for an hour.
            await mallory.unary_unary(SUBMIT)(b"", timeout=0.5)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await wait_until_async(lambda: refused.get() == before + 2, SECONDS)


async def test_a_team_s_operator_cannot_fill_the_memory_with_a_request_of_empty_tasks(tmp_path: Path) -> None:
    async with scheduler(tmp_path) as as_:
        ada, root = await as_("ada"), await as_("root")
        empty = b"\x0a\x00" * (1 << 18)
        assert await reason(ada.unary_unary(SUBMIT)(empty, timeout=SECONDS)) == "MESSAGE_TOO_DENSE"
        assert await reason(root.unary_unary(SUBMIT)(empty, timeout=SECONDS)) == "TOO_MANY_TASKS"


async def test_a_team_s_operator_cannot_fill_the_memory_with_a_message_of_a_stream(tmp_path: Path) -> None:
    async with scheduler(tmp_path) as as_:
        stream: Any = (await as_("ada")).stream_stream("/parlmesh.v1.SchedulerService/SubmitTaskStream")(
            timeout=SECONDS
        )
        await stream.write(b"\x0a\x00" * (1 << 18))
        assert await reason(stream.read()) == "MESSAGE_TOO_DENSE"


async def test_a_small_method_never_takes_a_large_message(tmp_path: Path) -> None:
    async with scheduler(tmp_path) as as_:
        root: Any = await as_("root")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await root.unary_unary(LIST)(bytes(65537), timeout=SECONDS)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.value.details() == f"a message of 65537 bytes is too large for {LIST}; the limit is 65536"
        assert error_from_rpc(error.value).reason == "MESSAGE_TOO_LARGE"
        stream = root.unary_stream("/parlmesh.v1.SchedulerService/WatchTasks")(bytes((4 << 20) + 1), timeout=SECONDS)
        assert await reason(stream.read()) == "MESSAGE_TOO_LARGE"
        # Ten thousand of the longest ids do not make a large message.
        ids = [f"{number:0256d}" for number in range(10_000)]
        cancel = SchedulerServiceStub(root).CancelTasks(pb.CancelTasksRequest(task_ids=ids), timeout=SECONDS)
        assert await reason(cancel) == "UNKNOWN_TASK"
        ended = Counter([await reason(root.unary_unary(LIST)(bytes(65536), timeout=SECONDS)) for _ in range(2)])
        assert ended == {"MALFORMED_MESSAGE": 2}


async def test_the_ids_in_a_reader_s_open_watches_have_a_weight(tmp_path: Path) -> None:
    async with scheduler(tmp_path, watched_bytes=200) as as_:
        operator, reader = await as_("root"), await as_("eve")
        assert await submitted(operator, "a") == ""

        def watch(channel: Any) -> Any:
            stub: Any = SchedulerServiceStub(channel)
            return stub.WatchTasks(pb.WatchTasksRequest(task_ids=["a"]), timeout=SECONDS)

        calls = [watch(channel) for channel in (reader, reader, operator, operator, operator, operator)]
        for call in calls:
            await call.initial_metadata()
        assert await reason(watch(reader).read()) == "TOO_MUCH_WATCHED"
        stub: Any = SchedulerServiceStub(operator)
        await stub.CancelTasks(pb.CancelTasksRequest(task_ids=["a"]), timeout=SECONDS)
        for call in calls:
            assert [outcome.task_id async for answer in call for outcome in answer.outcomes] == ["a"]
        # Finished tasks weigh nothing.
        assert await reason(watch(reader).read()) == ""
