"""The cost of useless connections for a scheduler and its callers, beside a bare server in the same run.

On one machine the flood's own process takes cores from everyone. Two controls separate that: the same flood against a
bare grpc.aio server, and a flood against the other server while ours is called.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from parlmesh.rpc import open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.tokens import write_token
from parlmesh.testing import Process
from tools.bench.ground.places import ROOT

CALL = "/parlmesh.v1.SchedulerService/GetStatistics"
IDLE = 1000
PACED = 1000.0
CONDITIONS = ("alone", "idle", "paced", "flood", "elsewhere")


class Server(NamedTuple):
    """A server to call, and its process."""

    name: str
    address: str
    pid: int
    security: SecurityConfig

    def cpu_seconds(self) -> float:
        """Processor time of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def main(turns: int, calls: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with servers(Path(folder)) as (ours, bare):
            for _ in range(turns):
                for server, other in ((ours, bare), (bare, ours)):
                    for condition in CONDITIONS:
                        async with surroundings(condition, server, other):
                            p99 = await honest_p99(server, calls)
                        found.setdefault(f"{server.name}_{condition}_p99_ms", []).append(p99 * 1e3)
                    cost = await cost_of_a_reset(server)
                    found.setdefault(f"{server.name}_reset_cpu_us", []).append(cost * 1e6)
    return {key: statistics.median(values) for key, values in found.items()}


@contextlib.asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[tuple[Server, Server]]:
    token, _ = write_token(folder, "ada", Role.OPERATOR, force=False)
    settings = (
        "listen.port=0",
        "metrics.port=null",
        "store.kind=memory",
        f"security.tokens={folder / 'tokens.yaml'}",
    )
    arguments = [part for one in settings for part in ("--set", one)]
    bare = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.bench.ours.strangers.bare_server", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert bare.stdout is not None
    try:
        with Process("scheduler", *arguments, cwd=ROOT) as process:
            address = (await asyncio.wait_for(bare.stdout.readline(), 30.0)).decode().strip()
            known = SecurityConfig(token_file=token)
            yield (
                Server("ours", process.wait_for("serving")["address"], process.pid, known),
                Server("bare", address, bare.pid, SecurityConfig()),
            )
    finally:
        bare.kill()
        await bare.wait()


async def honest_p99(server: Server, calls: int) -> float:
    took = []
    async with open_channel(server.address, server.security) as channel:
        call: Any = channel.unary_unary(CALL)
        for _ in range(calls):
            started = time.perf_counter()
            await call(b"", timeout=60.0, wait_for_ready=True)
            took.append(time.perf_counter() - started)
    return statistics.quantiles(took, n=100)[98]


@contextlib.asynccontextmanager
async def surroundings(condition: str, server: Server, other: Server) -> AsyncIterator[None]:
    if condition == "idle":
        with idle(server.address):
            yield
    elif condition == "alone":
        yield
    else:
        at = other if condition == "elsewhere" else server
        async with resetting(at.address, PACED if condition == "paced" else 0.0):
            yield


@contextlib.contextmanager
def idle(address: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10.0))
        yield


@contextlib.asynccontextmanager
async def resetting(address: str, rate: float) -> AsyncIterator[Callable[[], int]]:
    """Yields a function that returns the number of resets so far."""
    host, _, port = address.rpartition(":")
    script = str(Path(__file__).with_name("resets.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, host, port, str(rate), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    made = len(await process.stdout.readexactly(1))

    async def count() -> None:
        nonlocal made
        while data := await process.stdout.read(1 << 16):  # type: ignore[union-attr]
            made += len(data)

    counting = asyncio.create_task(count())
    try:
        yield lambda: made
    finally:
        process.kill()
        await process.wait()
        await counting


async def cost_of_a_reset(server: Server, wanted: int = 3000, longest_seconds: float = 20.0) -> float:
    """Processor seconds of the server for each connection that is reset, without its idle use."""
    usual = await busy(server, 1.0)
    async with resetting(server.address, 0.0) as made:
        before, first, started = server.cpu_seconds(), made(), time.monotonic()
        while made() - first < wanted and time.monotonic() - started < longest_seconds:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        spent = server.cpu_seconds() - before - usual * (time.monotonic() - started)
        return max(0.0, spent) / max(1, made() - first)


async def busy(server: Server, seconds: float) -> float:
    """Share of a core that the server takes while nothing happens."""
    before, started = server.cpu_seconds(), time.monotonic()
    await asyncio.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.monotonic() - started)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(main(given.turns, given.calls))))
