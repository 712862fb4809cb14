"""A servicer over real sockets, as its client and the counters see it."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from prometheus_client import REGISTRY

from parlmesh.errors import FleetError, InvalidInput, NotFound, ResourceExhausted
from parlmesh.rpc import caller, error_from_rpc, open_channel
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.gate import Gate
from parlmesh.security import ANYONE, Role, SecurityConfig
from parlmesh.security.authorisation import build_guard
from parlmesh.security.tokens import write_token
from parlmesh.testing import serve, wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb

SECRET = "password=hunter2"
SECONDS = 60.0


class Servicer:
    """One method of each shape, each with a behaviour that the test sets."""

    def __init__(self) -> None:
        self.unary: Callable[[Any, Any], Awaitable[Any]] = self._echo
        self.stream: Callable[[Any, Any], AsyncIterator[Any]] = self._repeat
        self.closed = 0

    async def _echo(self, request: Any, context: Any) -> Any:
        return request

    async def _repeat(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            yield request

    async def UnaryUnary(self, request: pb.GetTaskRequest, context: Any) -> Any:
        return await self.unary(request, context)

    async def UnaryStream(self, request: pb.GetTaskRequest, context: Any) -> AsyncIterator[Any]:
        async def one() -> AsyncIterator[Any]:
            yield request

        try:
            async for message in self.stream(one(), context):
                yield message
        finally:
            self.closed += 1

    async def StreamUnary(self, requests: AsyncIterator[Any], context: Any) -> Any:
        last = pb.GetTaskRequest()
        async for request in requests:
            last = request
        return await self.unary(last, context)

    async def StreamStream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            async for message in self.stream(requests, context):
                yield message
        finally:
            self.closed += 1

    async def Writing(self, requests: AsyncIterator[Any], context: Any) -> None:
        async for message in self.stream(requests, context):
            await context.write(message)

    def service(self) -> Service:
        codec = {
            "request_deserializer": pb.GetTaskRequest.FromString,
            "response_serializer": pb.GetTaskRequest.SerializeToString,
        }
        handlers: dict[str, Any] = {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(self.UnaryUnary, **codec),  # type: ignore[arg-type]
            "UnaryStream": grpc.unary_stream_rpc_method_handler(self.UnaryStream, **codec),  # type: ignore[arg-type]
            "StreamUnary": grpc.stream_unary_rpc_method_handler(self.StreamUnary, **codec),  # type: ignore[arg-type]
            "StreamStream": grpc.stream_stream_rpc_method_handler(self.StreamStream, **codec),  # type: ignore[arg-type]
            "Writing": grpc.stream_stream_rpc_method_handler(self.Writing, **codec),  # type: ignore[arg-type]
        }
        return Service("test.Shapes", lambda server: server.add_registered_method_handlers("test.Shapes", handlers))


SHAPES = ["UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream", "Writing"]


async def call(channel: Any, shape: str, message: bytes = b"", count: int = 1) -> list[bytes]:
    method = f"/test.Shapes/{shape}"
    messages = [message] * count
    if shape == "UnaryUnary":
        return [await channel.unary_unary(method)(message, timeout=SECONDS)]
    if shape == "StreamUnary":
        return [await channel.stream_unary(method)(iter(messages), timeout=SECONDS)]
    stream: Any = (
        channel.unary_stream(method)(message, timeout=SECONDS)
        if shape == "UnaryStream"
        else channel.stream_stream(method)(iter(messages), timeout=SECONDS)
    )
    return [answer async for answer in stream]


async def failure(servicer: Servicer, shape: str, message: bytes = b"") -> grpc.aio.AioRpcError:
    async with serve([servicer.service()]) as address, open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(channel, shape, message)
    return error.value


def raising(error: BaseException) -> Servicer:
    async def unary(request: Any, context: Any) -> Any:
        raise error

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            raise error
        yield None

    servicer = Servicer()
    servicer.unary, servicer.stream = unary, stream
    return servicer


def counted(method: str, code: str) -> float:
    return REGISTRY.get_sample_value("parlmesh_rpc_requests_total", {"method": method, "code": code}) or 0.0


@pytest.mark.parametrize("shape", SHAPES)
async def test_messages_pass_unchanged(shape: str) -> None:
    message = pb.GetTaskRequest(task_id="t1").SerializeToString()
    async with serve([Servicer().service()]) as address, open_channel(address) as channel:
        count = 3 if shape in ("StreamStream", "Writing") else 1
        assert await call(channel, shape, message, count) == [message] * count


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_error_of_the_fleet_is_its_status_with_all_details(shape: str) -> None:
    error = await failure(raising(ResourceExhausted("queue is full", retry_after_seconds=1.5, limit=10)), shape)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "queue is full"
    got = error_from_rpc(error)
    assert isinstance(got, ResourceExhausted)
    assert (got.reason, got.metadata, got.retry_after_seconds) == ("RESOURCE_EXHAUSTED", {"limit": "10"}, 1.5)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_group_of_a_task_group_is_unwrapped(shape: str) -> None:
    error = await failure(raising(ExceptionGroup("unhandled errors", [NotFound("no task t1")])), shape)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "no task t1")
    assert ("parlmesh-reason", "NOT_FOUND") in tuple(error.trailing_metadata() or ())


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_bytes_that_a_servicer_cannot_parse_are_the_caller_s_fault(shape: str, grouped: bool) -> None:
    error = DecodeError("Error parsing message")
    found = await failure(raising(ExceptionGroup("unhandled errors", [error]) if grouped else error), shape)
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from_rpc(found).reason == "MALFORMED_MESSAGE"


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_defect_leaks_nothing_and_is_logged_with_its_id(shape: str, caplog: pytest.LogCaptureFixture) -> None:
    error = await failure(raising(ValueError(SECRET)), shape)
    assert error.code() is grpc.StatusCode.INTERNAL
    details = error.details() or ""
    assert details.startswith("internal error ")
    assert SECRET not in f"{error!r}{error.trailing_metadata()}"
    (record,) = [record for record in caplog.records if record.name == "parlmesh.rpc" and record.levelname == "ERROR"]
    fields = record.__dict__["parlmesh_fields"]
    assert fields == {"error_id": details.removeprefix("internal error "), "method": f"/test.Shapes/{shape}"}
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


async def test_a_read_that_the_server_s_end_breaks_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    stopped: type[Exception] = cygrpc._ServerStoppedError
    error = await failure(raising(stopped("Server already stopped")), "StreamStream")
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("defect", [False, True])
async def test_a_write_to_a_client_that_has_gone_is_no_defect_in_a_task_group_either(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, defect: bool
) -> None:
    # The client of this test is still there, but gets no answer.
    monkeypatch.setattr(f"{__name__}.SECONDS", 1.0)
    gone: Exception = cygrpc.ExecuteBatchError("Failed execute_batch")
    inner = ExceptionGroup("unhandled errors", [gone, InvalidInput("a message cannot be taken")])
    others = [ValueError("a real one")] if defect else []
    await failure(raising(ExceptionGroup("unhandled errors", [inner, *others])), "StreamStream")
    # Records of grpc's own loggers too.
    found = [record.name for record in caplog.records if record.levelno >= logging.ERROR]
    assert found == ["parlmesh.rpc"] * len(others)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_request_that_cannot_be_parsed_is_the_caller_s_fault(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await failure(Servicer(), shape, b"\xff\xff\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from_rpc(error).reason == "MALFORMED_MESSAGE"
    assert "cannot be parsed" in (error.details() or "")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_answer_that_cannot_be_serialised_leaks_nothing(shape: str) -> None:
    async def unary(request: Any, context: Any) -> Any:
        return SECRET

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        yield SECRET

    servicer = Servicer()
    servicer.unary, servicer.stream = unary, stream
    error = await failure(servicer, shape)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert SECRET not in f"{error!r}"


async def test_a_very_long_sentence_still_arrives() -> None:
    error = await failure(raising(InvalidInput("語" * 20_000, value="x" * 20_000)), "UnaryUnary")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").endswith("...")


async def test_a_method_that_does_not_exist_is_counted_as_other() -> None:
    before = counted("other", "UNIMPLEMENTED")
    async with serve([Servicer().service()]) as address, open_channel(address) as channel:
        for number in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await channel.unary_unary(f"/test.Nothing/M{number}")(b"", timeout=SECONDS)  # type: ignore[arg-type]
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert counted("other", "UNIMPLEMENTED") == before + 3
    assert counted("/test.Nothing/M0", "UNIMPLEMENTED") == 0


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls_are_counted_by_method_and_code(shape: str) -> None:
    method = f"/test.Shapes/{shape}"
    fine, failed = counted(method, "OK"), counted(method, "NOT_FOUND")
    async with serve([Servicer().service()]) as address, open_channel(address) as channel:
        await call(channel, shape)
    await failure(raising(NotFound("gone")), shape)
    assert (counted(method, "OK"), counted(method, "NOT_FOUND")) == (fine + 1, failed + 1)


async def test_only_unary_calls_are_timed() -> None:
    def timed(shape: str) -> float:
        labels = {"method": f"/test.Shapes/{shape}"}
        return REGISTRY.get_sample_value("parlmesh_rpc_duration_seconds_count", labels) or 0.0

    before = timed("UnaryUnary")
    async with serve([Servicer().service()]) as address, open_channel(address) as channel:
        for shape in SHAPES:
            await call(channel, shape)
    assert timed("UnaryUnary") == before + 1
    assert [timed(shape) for shape in SHAPES[1:]] == [0.0] * 4


@pytest.mark.parametrize("shape", ["UnaryStream", "StreamStream"])
async def test_a_client_that_leaves_ends_the_servicer_and_is_counted(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    started = asyncio.Event()

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.GetTaskRequest()
        started.set()
        await asyncio.Event().wait()

    servicer = Servicer()
    servicer.stream = stream
    method = f"/test.Shapes/{shape}"
    before = counted(method, "CANCELLED")
    async with serve([servicer.service()]) as address, open_channel(address) as channel:
        running: Any = (
            channel.unary_stream(method)(b"", timeout=SECONDS)  # type: ignore[arg-type]
            if shape == "UnaryStream"
            else channel.stream_stream(method)(timeout=SECONDS)
        )
        assert await running.read() == b""
        await asyncio.wait_for(started.wait(), SECONDS)
        running.cancel()
        await wait_until_async(lambda: servicer.closed == 1, SECONDS)
        await wait_until_async(lambda: counted(method, "CANCELLED") == before + 1, SECONDS)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_error_while_the_client_is_leaving_is_not_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        yield pb.GetTaskRequest()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise NotFound("gone meanwhile")

    servicer = Servicer()
    servicer.stream = stream
    async with serve([servicer.service()]) as address, open_channel(address) as channel:
        running: Any = channel.stream_stream("/test.Shapes/StreamStream")(timeout=SECONDS)
        await running.read()
        running.cancel()
        await asyncio.wait_for(ended.wait(), SECONDS)
        assert await call(channel, "UnaryUnary") == [b""]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_without_security_the_caller_is_anyone() -> None:
    seen = []

    async def unary(request: Any, context: Any) -> Any:
        seen.append(caller())
        return request

    servicer = Servicer()
    servicer.unary = unary
    async with serve([servicer.service()]) as address, open_channel(address) as channel:
        await call(channel, "UnaryUnary")
    assert seen == [ANYONE]


async def test_a_servicer_may_set_its_own_status() -> None:
    async def unary(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.ABORTED, "as I say")

    servicer = Servicer()
    servicer.unary = unary
    before = counted("/test.Shapes/UnaryUnary", "ABORTED")
    error = await failure(servicer, "UnaryUnary")
    assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "as I say")
    assert counted("/test.Shapes/UnaryUnary", "ABORTED") == before + 1


async def test_an_unclassified_fleet_error_is_internal_and_keeps_its_sentence() -> None:
    error = await failure(raising(FleetError("the store is gone")), "UnaryUnary")
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "the store is gone")


class Sent(str):
    """Text that can be weakly referenced."""


class Details(NamedTuple):
    method: str
    invocation_metadata: tuple[tuple[str, str], ...]


async def test_what_a_refused_caller_sent_as_metadata_is_not_kept(tmp_path: Path) -> None:
    write_token(tmp_path, "ada", Role.OPERATOR, force=False)
    gate = Gate(build_guard(SecurityConfig(tokens=tmp_path / "tokens.yaml"), "127.0.0.1"))
    sent = Sent("x" * 10_000)
    watched = weakref.ref(sent)

    async def found(_: object) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

    gc.disable()
    try:
        details: Any = Details("/parlmesh.v1.SchedulerService/GetTask", (("authorization", "Bearer no"), ("k", sent)))
        refusing = await gate.intercept_service(found, details)
        del details, sent
        assert refusing is not None
        assert watched() is None
    finally:
        gc.enable()


async def test_a_stream_whose_first_write_is_cut_off_still_ends_with_its_status() -> None:
    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            async with asyncio.TaskGroup() as group:
                group.create_task(context.write(request))
                # The write has started, and is cancelled with its group.
                await asyncio.sleep(0)
                raise InvalidInput("no more", reason="NO_MORE")
            yield request

    servicer = Servicer()
    servicer.stream = stream
    error = await failure(servicer, "Writing")
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "no more")
