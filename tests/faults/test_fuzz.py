"""Random bytes and messages with random fields on every RPC of both servers are refused by name and harm nobody."""

import asyncio
import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from parlmesh.testing import Process, free_port
from parlmesh.v1 import scheduler_service_pb2 as scheduler_pb
from parlmesh.v1 import task_pb2
from parlmesh.v1 import training_service_pb2 as training_pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SERVERS = {
    "scheduler": ("scheduler_service_pb2", "fleet_service_pb2", "blob_service_pb2"),
    "learner": (
        "experience_service_pb2",
        "federation_service_pb2",
        "metrics_service_pb2",
        "model_service_pb2",
        "policy_service_pb2",
        "training_service_pb2",
    ),
}
CALLS = 25
# A stream that waits for more is not a fault; it is left after this long.
PATIENCE = 0.3
BAD = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


def methods(server: str) -> Iterator[MethodDescriptor]:
    for module in SERVERS[server]:
        for service in importlib.import_module(f"parlmesh.v1.{module}").DESCRIPTOR.services_by_name.values():
            yield from service.methods


def random_bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 7, 100, 5000)))


def random_message(descriptor: Any, rng: random.Random, depth: int = 0) -> Any:
    """Some fields, each with an odd value of its type."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if rng.random() < 0.4 or depth > 3:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if not field.message_type.GetOptions().map_entry:
                inner = random_message(field.message_type, rng, depth + 1)
                if field.is_repeated:
                    getattr(message, field.name).append(inner)
                else:
                    getattr(message, field.name).CopyFrom(inner)
        elif field.is_repeated:
            getattr(message, field.name).extend([odd_value(field, rng) for _ in range(rng.choice((1, 3, 50)))])
        else:
            setattr(message, field.name, odd_value(field, rng))
    return message


def odd_value(field: FieldDescriptor, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 5000)))
        return rng.choice(("", "x", "../../etc/passwd", "\u0000", "é" * 300, "x" * 100_000))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([value.number for value in field.enum_type.values])  # type: ignore[union-attr]
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(
            (0.0, -1.0, float("nan"), float("inf"), 1e300 if kind == FieldDescriptor.CPPTYPE_DOUBLE else 1.0)
        )
    signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
    bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    most = 2 ** (bits - signed) - 1
    return rng.choice((0, 1, 17, most, -most - 1 if signed else most))


async def status_of(channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes) -> tuple[grpc.StatusCode, str]:
    anything: Any = channel
    path = f"/{method.containing_service.full_name}/{method.name}"

    async def requests() -> Any:
        yield data

    try:
        async with asyncio.timeout(PATIENCE if method.server_streaming or method.client_streaming else 20.0):
            if method.client_streaming and method.server_streaming:
                async for _ in anything.stream_stream(path)(requests()):
                    pass
            elif method.client_streaming:
                await anything.stream_unary(path)(requests())
            elif method.server_streaming:
                async for _ in anything.unary_stream(path)(data):
                    pass
            else:
                await anything.unary_unary(path)(data)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    except TimeoutError:
        return grpc.StatusCode.OK, "still open"
    return grpc.StatusCode.OK, ""


async def submit(channel: grpc.aio.Channel, task_id: str) -> None:
    request = scheduler_pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(task_id=task_id, kind="noop")])
    await SchedulerServiceStub(channel).SubmitTasks(request, timeout=30.0)


@pytest.mark.parametrize("server", list(SERVERS))
async def test_bytes_on_any_rpc_are_at_worst_refused(server: str, tmp_path: Path) -> None:
    rng = random.Random(f"fuzz-{server}")
    port = free_port()
    settings = {"listen.port": port, "metrics.port": "null", "log.level": "info"}
    if server == "scheduler":
        settings["store.path"] = tmp_path / "s.sqlite"
    else:
        # It has every service; its run waits for a scheduler.
        settings |= {"run_dir": tmp_path / "run", "mode": "fleet", "scheduler": "127.0.0.1:1"}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with Process(server, *arguments, cwd=ROOT) as process:
        process.wait_for("serving", 60.0)
        refused = 0
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            if server == "scheduler":
                await submit(channel, "innocent")
            for method in methods(server):
                for number in range(CALLS):
                    if number % 2:
                        data = random_bytes(rng)
                    else:
                        data = random_message(method.input_type, rng).SerializeToString()
                    code, details = await status_of(channel, method, data)
                    assert code is not grpc.StatusCode.UNIMPLEMENTED, f"{method.full_name} is not served"
                    assert code not in BAD, f"{method.full_name} {data[:80]!r}: {code} {details}"
                    # gRPC's own error for a message that cannot be parsed.
                    internal = code is grpc.StatusCode.INTERNAL and details != "Internal error from Core"
                    assert not internal, f"{method.full_name} {data[:80]!r}: {details}"
                    assert "Traceback" not in details
                    refused += code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused > 50
        assert process.running
        assert not [event["event"] for event in process.events() if "traceback" in event]
        process.kill()
    # What was accepted harms neither the next start nor earlier tasks.
    with Process(server, *arguments, cwd=ROOT) as process:
        process.wait_for("serving", 60.0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            if server == "scheduler":
                stub = SchedulerServiceStub(channel)
                task = (await stub.GetTask(scheduler_pb.GetTaskRequest(task_id="innocent"), timeout=30.0)).task
                assert task.state == task_pb2.TASK_STATE_QUEUED
                await submit(channel, "next")
            else:
                trainings = TrainingServiceStub(channel)
                listed = await trainings.ListTrainings(training_pb.ListTrainingsRequest(), timeout=30.0)
                assert "run" in [training.run_id for training in listed.trainings]
        process.terminate()
        process.assert_exits(0, 30.0)


def peak_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


async def test_a_message_that_unpacks_to_far_more_than_the_limit_is_refused_and_costs_little(tmp_path: Path) -> None:
    port = free_port()
    settings = {"listen.port": port, "metrics.port": "null", "store.path": tmp_path / "s.sqlite"}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with Process("scheduler", *arguments, cwd=ROOT) as process:
        process.wait_for("serving", 60.0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await submit(channel, "before")
            before = peak_bytes(process)
            anything: Any = channel
            call = anything.unary_unary("/parlmesh.v1.SchedulerService/SubmitTasks")
            for size, code in ((1 << 20, None), (128 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED)):
                # Zeros: some kilobytes on the wire.
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(bytes(size), compression=grpc.Compression.Gzip, timeout=60.0)
                if code is None:
                    assert refused.value.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED, "what fits is unpacked"
                else:
                    assert refused.value.code() is code
            assert peak_bytes(process) - before < 64 << 20
            await submit(channel, "after")
