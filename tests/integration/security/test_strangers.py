"""The cost of unauthenticated callers to a scheduler process: memory, threads, and the time of honest callers."""

import asyncio
import contextlib
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

from parlmesh.config import ListenConfig
from parlmesh.rpc import open_channel
from parlmesh.rpc.server import FleetServer
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.tokens import write_token
from parlmesh.testing import Process, wait_until_async
from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from tests.integration.security.conftest import LIST, SECONDS
from tests.integration.security.raw_http2 import (
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    RESET,
    call_headers,
    connected,
    header_frames,
    literal,
)

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
        """Its peak memory in MiB."""
        return self._status("VmHWM") / 1024

    def threads(self) -> float:
        return self._status("Threads")

    def loop_seconds(self) -> float:
        """Processor time of the thread that runs the event loop."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

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
    arguments = [part for one in settings for part in ("--set", one)]
    with Process("tests.integration.security.stalling_scheduler", *arguments, cwd=ROOT) as process:
        address = process.wait_for("serving")["address"]
        yield Guarded(process, address, SecurityConfig(token_file=token))


async def large_call(channel: Any, method: str) -> str:
    """The status of a call with the largest possible body."""
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
    ("method", "statuses"),
    [
        (LIST, {"UNAUTHENTICATED"}),
        # grpc.aio's client loses the status of a stream that ends while it writes.
        (STREAM, {"UNAUTHENTICATED", "INTERNAL"}),
        (CHECK, {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}),
    ],
)
async def test_200_large_calls_without_a_credential_cost_little_memory_even_while_the_loop_is_late(
    guarded: Guarded, method: str, statuses: set[str]
) -> None:
    """gRPC's threads read what a stream's window allows, and only the loop can refuse the call."""
    before = guarded.peak()
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(open_channel(guarded.address)) for _ in range(4)]
        for channel in channels:
            await channel.channel_ready()
        guarded.process.signal(signal.SIGUSR2)
        await asyncio.to_thread(guarded.process.wait_for, "stalls", SECONDS)
        ended = Counter(await asyncio.gather(*(large_call(channels[n % 4], method) for n in range(200))))
    await asyncio.to_thread(guarded.process.wait_for, "stalled", SECONDS)
    assert set(ended) <= statuses, ended
    print(f"{guarded.peak() - before:.1f} MiB, {ended}")
    assert guarded.peak() - before <= 50


@pytest.mark.parametrize("strangers", [True, False])
async def test_a_server_that_strangers_reach_lets_a_stream_send_little_unasked(tmp_path: Path, strangers: bool) -> None:
    write_token(tmp_path, "ada", Role.OPERATOR, force=False)
    security = SecurityConfig(tokens=tmp_path / "tokens.yaml") if strangers else SecurityConfig()

    def settings(address: str) -> dict[int, int]:
        with connected(address, SECONDS) as connection:
            return connection.settings

    async with FleetServer(listen=ListenConfig(), security=security, services=[]) as server:
        told = await asyncio.to_thread(settings, server.address)
    assert told[INITIAL_WINDOW_SIZE] == (1 << 16 if strangers else 1 << 20)
    assert told[MAX_HEADER_LIST_SIZE] == 8 << 10
    assert told[MAX_CONCURRENT_STREAMS] == 1024


def test_a_client_with_a_certificate_from_the_handshake_is_not_a_stranger() -> None:
    files: dict[str, Any] = {"ca": Path("ca"), "certificate": Path("certificate"), "key": Path("key")}
    assert SecurityConfig(**files).answers_strangers
    assert not SecurityConfig(**files, require_client_certificate=True).answers_strangers
    assert not SecurityConfig().answers_strangers


FIELDS = 15_000


@pytest.mark.parametrize("place", ["headers", "trailers"])
async def test_header_fields_of_one_byte_each_cost_little_memory_even_while_the_loop_is_late(
    guarded: Guarded, place: str
) -> None:
    """A field that HPACK names by its index is one byte on the wire, but a name and a value in memory."""
    before = guarded.peak()
    stored, bomb = literal(b"a" * 40, b"", kept=True), bytes([0x80 | 62]) * FIELDS

    def ended(calls: int) -> int:
        with connected(guarded.address, SECONDS) as connection:
            guarded.process.signal(signal.SIGUSR2)
            guarded.process.wait_for("stalls", SECONDS)
            for number in range(calls):
                stream, head, fields = 2 * number + 1, call_headers(LIST), (stored if number == 0 else b"") + bomb
                if place == "headers":
                    connection.send(header_frames(stream, head + fields))
                else:
                    connection.send(header_frames(stream, head) + header_frames(stream, fields, END_STREAM))
            answered: set[int] = set()
            while len(answered) < calls:
                answer = connection.read()
                if answer.kind in (HEADERS, RESET):
                    answered.add(answer.stream)
            return len(answered)

    assert await asyncio.to_thread(ended, 400) == 400
    print(f"{guarded.peak() - before:.1f} MiB")
    assert guarded.peak() - before <= 50
    # gRPC's log line for every such call would fill a disk at the speed of the stranger's link.
    assert len(guarded.process.lines) <= 200, guarded.process.lines[-3:]


async def test_large_malformed_calls_of_a_reader_are_not_kept(guarded: Guarded, tmp_path: Path) -> None:
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
    assert ended["INVALID_ARGUMENT"] >= 1
    print(f"peak {guarded.peak() - before:.0f} MiB more, {ended}")
    assert guarded.peak() - before <= 150


class Turn(NamedTuple):
    """p99 of honest calls: how long they took, and how long the server's loop worked meanwhile."""

    took: float
    loop: float


async def honest_p99(guarded: Guarded, calls: int) -> Turn:
    """The loop's time does not include the machine's other work."""
    took, loop = [], []
    async with open_channel(guarded.address, guarded.security) as channel:
        stub: Any = SchedulerServiceStub(channel)
        for _ in range(calls):
            started, worked = time.perf_counter(), guarded.loop_seconds()
            await stub.GetStatistics(GetStatisticsRequest(), timeout=60.0, wait_for_ready=True)
            took.append(time.perf_counter() - started)
            loop.append(guarded.loop_seconds() - worked)
    return Turn(statistics.quantiles(took, n=100)[98], statistics.quantiles(loop, n=100)[98])


RESETTING = """
import os, socket, struct, sys
os.nice(19)
host, port = sys.argv[1:]
while True:
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    sys.stdout.write("x")
    sys.stdout.flush()
"""


@contextlib.asynccontextmanager
async def resetting(host: str, port: str, times: int) -> AsyncIterator[None]:
    """Opens at least this many connections that end with a reset, from another process so as to act like another
    machine."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RESETTING, host, port, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readexactly(1)
        yield
        await process.stdout.readexactly(times - 1)
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("turns", "calls"), [(1, 100), pytest.param(7, 300, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_idle_and_resetting_connections_keep_nobody_out(guarded: Guarded, turns: int, calls: int) -> None:
    """Measures alone, among idle and among resetting connections in turns, so that the machine's other work is in
    all."""
    host, _, port = guarded.address.rpartition(":")
    threads = guarded.threads()
    alone, among_idle, among_resetting = [], [], []
    for _ in range(turns):
        alone.append(await honest_p99(guarded, calls))
        with contextlib.ExitStack() as idle:
            for _ in range(1000):
                idle.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
            among_idle.append(await honest_p99(guarded, calls))
        async with resetting(host, port, 1000):
            among_resetting.append(await honest_p99(guarded, calls))
        assert guarded.threads() <= threads + 20
    for field in Turn._fields:
        usual, idle_p99, resetting_p99 = (
            statistics.median(getattr(turn, field) for turn in each) for each in (alone, among_idle, among_resetting)
        )
        print(f"{field} p99: {usual:.4f} s alone, {idle_p99:.4f} s idle, {resetting_p99:.4f} s resetting")
        assert turns == 1 or field != "loop" or max(idle_p99, resetting_p99) <= 2 * usual
