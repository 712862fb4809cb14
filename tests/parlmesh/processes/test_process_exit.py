import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import uvloop

from parlmesh.processes.process_exit import Process
from parlmesh.testing import serve

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    def run(coroutine: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run


def start(tmp_path: Path, program: str) -> Process:
    with (tmp_path / "output").open("ab") as output:
        return Process([sys.executable, "-c", program], output=output, environment=os.environ)


@asynccontextmanager
async def busy_grpc() -> AsyncIterator[None]:
    """Keeps calls in flight all the time."""

    async def call(channel: grpc.aio.Channel) -> None:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        while True:
            await check(b"")

    async with serve([]) as address, grpc.aio.insecure_channel(address) as channel:
        callers = [asyncio.ensure_future(call(channel)) for _ in range(4)]
        yield
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


def test_the_end_is_reported_by_its_return_code(run: Callable[..., Any], tmp_path: Path) -> None:
    async def main() -> list[int]:
        quick, killed = start(tmp_path, "raise SystemExit(3)"), start(tmp_path, "import signal; signal.pause()")
        killed.send_signal(signal.SIGKILL)
        return [await quick.wait(), await killed.wait(), await killed.wait()]

    assert run(main()) == [3, -9, -9]


def test_a_cancelled_wait_leaves_the_process_alone(run: Callable[..., Any], tmp_path: Path) -> None:
    async def main() -> int:
        process = start(tmp_path, "import signal; signal.pause()")
        waiting = asyncio.ensure_future(process.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        os.kill(process.pid, 0)
        process.send_signal(signal.SIGTERM)
        return await process.wait()

    assert run(main()) == -15


def test_processes_start_whole_while_grpc_is_busy(run: Callable[..., Any], tmp_path: Path) -> None:
    async def main() -> list[int]:
        async with busy_grpc():
            return [await start(tmp_path, "pass").wait() for _ in range(10)]

    assert run(main()) == [0] * 10
