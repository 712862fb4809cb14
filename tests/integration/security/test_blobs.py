"""Blobs of processes that do not share the folder: sent, checked, and readable only in their own namespace."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from parlmesh.blob_transfer import Exchange
from parlmesh.blobs import Reference, name_of
from parlmesh.config import ListenConfig, MetricsConfig
from parlmesh.errors import FleetError
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.tokens import write_token
from parlmesh.v1 import blob_service_pb2 as blob_pb
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.blob_service_pb2_grpc import BlobServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.wire import payload_to_proto
from scheduler.blob_ledger import writer_of
from scheduler.build import Scheduler
from scheduler.config import BlobConfig, SchedulerConfig, StoreConfig
from scheduler.wire import blob_servicer

SECONDS = 60.0
TEAM_A = writer_of("n", "team-a")


@pytest.fixture
async def as_(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens channels to the scheduler for given identities."""
    for name, role, namespace in (
        ("ada", Role.OPERATOR, "team-a"),
        ("bob", Role.OPERATOR, "team-b"),
        ("root", Role.OPERATOR, ""),
        ("node-1", Role.ACTOR, ""),
    ):
        write_token(tmp_path, name, role, force=False, namespace=namespace)
    scheduler = Scheduler(
        SchedulerConfig(
            listen=ListenConfig(drain_seconds=0.2),
            metrics=MetricsConfig(port=None),
            store=StoreConfig(kind="memory"),
            blobs=BlobConfig(folder=tmp_path / "blobs", largest_bytes=8 << 20),
            security=SecurityConfig(tokens=tmp_path / "tokens.yaml"),
        )
    )
    stop = asyncio.Event()
    await scheduler.start()
    running = asyncio.ensure_future(scheduler.shell.run(stop))
    async with AsyncExitStack() as stack:

        async def channel(name: str) -> Any:
            security = SecurityConfig(token_file=tmp_path / f"{name}.token")
            return await stack.enter_async_context(open_channel(scheduler.server.address, security))

        yield channel
    stop.set()
    await running
    await scheduler.stop()
    assert not (tmp_path / "blobs").exists()


async def reason(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error_from_rpc(error).reason
    except FleetError as error:
        return error.reason
    return ""


async def put(channel: Any, name: str, data: bytes, size: int | None = None) -> str:
    async def pieces() -> AsyncIterator[blob_pb.PutBlobRequest]:
        half = len(data) // 2
        yield blob_pb.PutBlobRequest(name=name, size_bytes=len(data) if size is None else size, data=data[:half])
        yield blob_pb.PutBlobRequest(data=data[half:])

    return await reason(BlobServiceStub(channel).PutBlob(pieces(), timeout=SECONDS))


async def get(channel: Any, name: str, task_id: str = "") -> bytes:
    request = blob_pb.GetBlobRequest(name=name, task_id=task_id)
    return b"".join([message.data async for message in BlobServiceStub(channel).GetBlob(request, timeout=SECONDS)])


async def submit(channel: Any, task_id: str, reference: Reference) -> str:
    tasks = [task_pb2.TaskSpec(task_id=task_id, kind="noop", payload=payload_to_proto({}, {"x": reference}))]
    return await reason(SchedulerServiceStub(channel).SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=SECONDS))


async def test_a_blob_is_read_by_its_own_namespace_and_through_its_own_tasks_alone(as_: Any) -> None:
    ada, bob, root, node = [await as_(name) for name in ("ada", "bob", "root", "node-1")]
    data = np.arange(3 << 19, dtype=np.uint8).tobytes()
    reference = Reference(name_of(TEAM_A, "1", data), np.dtype(np.uint8), (len(data),))
    assert await put(ada, reference.name, data) == ""
    assert await get(ada, reference.name) == data
    assert await submit(ada, "mine", reference) == ""
    assert await get(root, reference.name, "mine") == data
    # Nobody else can read it: neither by its name, nor through the task, nor with their own task.
    assert await submit(bob, "theirs", reference) == "BLOB_UNKNOWN"
    for channel, task_id in ((bob, ""), (bob, "mine"), (bob, "theirs"), (node, ""), (node, "mine")):
        assert await reason(get(channel, reference.name, task_id)) == "BLOB_UNKNOWN"
    held = await BlobServiceStub(bob).HoldBlobs(blob_pb.HoldBlobsRequest(names=[reference.name]), timeout=SECONDS)
    assert held.held == 0
    assert await get(ada, reference.name) == data


async def test_foreign_and_mismatched_blobs_are_refused(as_: Any) -> None:
    ada, node = await as_("ada"), await as_("node-1")
    data, other = b"x" * 4096, b"y" * 4096
    name = name_of(TEAM_A, "1", data)
    assert await put(ada, name, other) == "BLOB_CORRUPT"
    assert await put(ada, name, data, size=4095) == "BLOB_SIZE"
    assert await put(ada, name, data, size=4097) == "BLOB_SIZE"
    assert await put(ada, name, data, size=9 << 20) == "BLOB_TOO_LARGE"
    assert await put(ada, "blob:../x.1." + "0" * 32, data) == "BLOB_NAME"
    assert await put(ada, name_of("c", "1", data), data) == "BLOB_WRITER"
    assert await put(node, name, data) == "BLOB_WRITER"
    assert await reason(get(ada, name)) == "BLOB_UNKNOWN"
    assert await put(node, name_of(writer_of("a", "node-1"), "1", data), data) == ""


async def test_a_sender_that_trickles_loses_the_room_reserved_for_it(
    as_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = await as_("ada")
    data = b"x" * 4096
    name = name_of(TEAM_A, "1", data)

    async def drops() -> AsyncIterator[blob_pb.PutBlobRequest]:
        yield blob_pb.PutBlobRequest(name=name, size_bytes=len(data), data=data[:1])
        for byte in data[1:]:
            await asyncio.sleep(0.02)
            yield blob_pb.PutBlobRequest(data=bytes([byte]))

    before = set((tmp_path / "blobs").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(blob_servicer, "PUT_SECONDS", 0.2)
        patched.setattr(blob_servicer, "SLOWEST_BYTES_PER_SECOND", 1 << 30)
        assert await reason(BlobServiceStub(ada).PutBlob(drops(), timeout=60.0)) == "SLOW_BLOB"
    assert set((tmp_path / "blobs").iterdir()) == before
    assert await put(ada, name, data) == ""


@pytest.mark.parametrize("most", [1 << 30, 1000])
async def test_a_process_on_another_host_sends_and_receives_each_blob_once(
    as_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    cut, write = [0], os.write

    def short(descriptor: int, data: bytes) -> int:
        cut[0] += len(data) > most
        return write(descriptor, memoryview(data)[:most])

    monkeypatch.setattr("os.write", short)
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("parlmesh.blob_transfer._cache_folder", lambda address: tmp_path / "cache")
    terms = blob_pb.BlobTerms(folder="/nowhere", proof="x", writer=TEAM_A, least_bytes=1024, largest_bytes=1 << 20)
    ada = await as_("ada")
    exchange = Exchange(BlobServiceStub(ada), "a", cache_bytes=1 << 20, call_seconds=SECONDS, keeps_results=True)
    exchange.agree(terms)
    array = np.arange(1000.0)
    sent = exchange.blobs.kept({"x": array, "small": array[:2]}, "1")
    reference = sent["x"]
    assert isinstance(reference, Reference)
    assert sent["small"] is not reference
    await exchange.upload([reference])
    assert exchange.blobs.folder is not None
    exchange.blobs.folder.remove(reference.name)
    await asyncio.gather(*(exchange.fetch([reference], "") for _ in range(5)))
    assert exchange.blobs.load(reference).tolist() == array.tolist()
    missing = Reference(name_of(TEAM_A, "1", b"?"), np.dtype(np.uint8), (1,))
    assert await reason(exchange.fetch([missing], "")) == "BLOB_UNKNOWN"
    # Copies of the file: at the sender, the scheduler and the receiver.
    assert cut[0] == (0 if most > array.nbytes else 3 * 7)


async def test_a_blob_that_is_announced_but_never_sent_gives_its_room_back(
    as_: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_servicer, "SILENCE_SECONDS", 0.2)
    node = await as_("node-1")
    name = name_of(writer_of("a", "node-1"), "1", memoryview(bytes(100)))

    async def silent() -> AsyncIterator[blob_pb.PutBlobRequest]:
        yield blob_pb.PutBlobRequest(name=name, size_bytes=8 << 20)
        await asyncio.Event().wait()

    assert await reason(BlobServiceStub(node).PutBlob(silent(), timeout=SECONDS)) == "SLOW_BLOB"
    # The next one is accepted as if nothing had happened.
    assert await put(node, name, bytes(100)) == ""


async def test_a_malformed_message_ends_an_actor_s_stream_with_its_status(as_: Any) -> None:
    hello = fleet_pb.Hello(node_id="node-1", actor_id="node-1-1", incarnation=1, slots=1, kinds=["noop"])
    stream = (await as_("node-1")).stream_stream("/parlmesh.v1.FleetService/Connect")(timeout=SECONDS)
    await stream.write(fleet_pb.ConnectRequest(hello=hello).SerializeToString())
    await stream.write(b"\xff" * 100)

    async def read() -> None:
        while await stream.read() is not grpc.aio.EOF:
            pass

    assert await reason(read()) == "MALFORMED_MESSAGE"
