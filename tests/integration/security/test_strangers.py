"""What those who prove nothing cost a scheduler process: memory, threads, and the time of honest callers."""

import asyncio
import contextlib
import socket
import statistics
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.rpc import open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.tokens import write_token
from parlmesh.testing import Process, wait_until_async
from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from tests.integration.security.conftest import LIST, SECONDS

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
MEBIBYTE = 1024 * 1024
STREAM = "/parlmesh.v1.SchedulerService/SubmitTaskStream"
CHECK = "/grpc.health.v1.Health/Check"
BODY = bytes(8 * MEBIBYTE - 1)


class Guarded:
    """A scheduler process that accepts one token."""

    def __init__(self, process: Process, address: str, security: SecurityConfig) -> None:
        self.process = process
        self.address = address
        self.security = security

    def peak(self) -> float:
        """Most memory it ever had, in MiB."""
        return self._status("VmHWM") / 1024

    def threads(self) -> float:
        return self._status("Threads")

    def _status(self, name: str) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    token, _ = write_token(tmp_path, "ada", Role.OPERATOR, force=False)
    settings = (
        "listen.port=0",
        "metrics.port=null",
        "store.kind=memory",
        f"security.tokens={tmp_path / 'tokens.yaml'}",
    )
    with Process("scheduler", *(part for one in settings for part in ("--set", one)), cwd=ROOT) as process:
        address = process.wait_for("serving")["address"]
        yield Guarded(process, address, SecurityConfig(token_file=token))


async def large_call(channel: Any, method: str) -> str:
    """The status of a call with the largest body there may be."""
    try:
        if method == STREAM:
            call = channel.stream_stream(method)(timeout=60)
            await call.write(BODY)
            await call.read()
        else:
            await channel.unary_unary(method)(BODY, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except (asyncio.InvalidStateError, grpc.aio.InternalError):
        # The stream ended before the message was sent.
        return "INTERNAL"
    return "OK"


@pytest.mark.parametrize(
    ("method", "statuses", "most"),
    [
        (LIST, {"UNAUTHENTICATED"}, 50),
        # grpc.aio's client loses the status of a stream that ends while it writes.
        (STREAM, {"UNAUTHENTICATED", "INTERNAL"}, 100),
        (CHECK, {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}, 150),
    ],
)
async def test_200_large_calls_without_a_credential_cost_little_memory(
    guarded: Guarded, method: str, statuses: set[str], most: float
) -> None:
    before = guarded.peak()
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(guarded.address)) for _ in range(4)]
        ended = Counter(await asyncio.gather(*(large_call(channels[n % 4], method) for n in range(200))))
    assert set(ended) <= statuses, ended
    assert guarded.peak() - before <= most


async def test_large_calls_of_a_reader_that_are_no_messages_are_not_kept(guarded: Guarded, tmp_path: Path) -> None:
    token, _ = write_token(tmp_path, "eve", Role.READER, force=False)
    reader = SecurityConfig(token_file=token)
    before = guarded.peak()

    async def accepted() -> bool:
        async with open_channel(guarded.address, reader) as channel:
            stub: Any = SchedulerServiceStub(channel)
            try:
                await stub.GetStatistics(GetStatisticsRequest(), timeout=SECONDS)
            except grpc.aio.AioRpcError:
                return False
        return True

    await wait_until_async(accepted, SECONDS)
    async with open_channel(guarded.address, reader) as channel:
        ended = Counter(await asyncio.gather(*(large_call(channel, LIST) for _ in range(100))))
    assert set(ended) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, ended
    assert ended["INVALID_ARGUMENT"] >= 30
    assert guarded.peak() - before <= 250


async def honest_p99(guarded: Guarded, calls: int = 300) -> float:
    async with open_channel(guarded.address, guarded.security) as channel:
        stub: Any = SchedulerServiceStub(channel)
        took = []
        for _ in range(calls):
            started = time.perf_counter()
            await stub.GetStatistics(GetStatisticsRequest(), timeout=SECONDS, wait_for_ready=True)
            took.append(time.perf_counter() - started)
    return statistics.quantiles(took, n=100)[98]


@pytest.mark.parametrize("factor", [None, pytest.param(2.0, marks=pytest.mark.slow)])
async def test_idle_and_resetting_connections_keep_nobody_out(guarded: Guarded, factor: float | None) -> None:
    """The time of honest calls is held against its limit only on a machine that does nothing else."""
    host, _, port = guarded.address.rpartition(":")
    threads = guarded.threads()
    alone = await honest_p99(guarded)
    with contextlib.ExitStack() as idle:
        for _ in range(1000):
            idle.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
        among_idle = await honest_p99(guarded)
        resetting = asyncio.ensure_future(asyncio.to_thread(reset_many, host, int(port), 1000))
        among_resetting = await honest_p99(guarded)
        await resetting
    print(f"p99 of honest calls: {alone:.4f} s, {among_idle:.4f} s among idle, {among_resetting:.4f} s among resetting")
    assert guarded.threads() <= threads + 20
    assert factor is None or max(among_idle, among_resetting) <= factor * alone


def reset_many(host: str, port: int, times: int) -> None:
    """Connections that end with a reset."""
    for _ in range(times):
        connection = socket.create_connection((host, port), timeout=SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
