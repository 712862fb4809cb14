"""One message there and one back over a bare gRPC stream between two processes: the floor for any scheduler.

A task passes two such streams, the client's and the actor's.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import parlmesh  # noqa: F401 - first, because it chooses gRPC's engine

# isort: split
import grpc
import grpc.aio
import uvloop

from ...ground.samples import percentile

WARM_UP = 200
METHOD = "/bare/Echo"


async def echo(messages: AsyncIterator[bytes], context: Any) -> None:
    async for message in messages:
        await context.write(message)


async def serve() -> None:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


async def measure(port: int, trips: int) -> list[float]:
    found = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_stream(METHOD)()
        for _ in range(trips):
            started = time.perf_counter()
            await call.write(bytes(100))
            await call.read()
            found.append((time.perf_counter() - started) * 1e3)
        call.cancel()
    return found[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trips", type=int, default=1000)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve())
        return
    command = [sys.executable, "-m", "tools.bench.ours.scheduler.bare_stream", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            milliseconds = uvloop.run(measure(int(server.stdout.readline()), arguments.trips + WARM_UP))
        finally:
            server.terminate()
    print(json.dumps({"p50_ms": percentile(milliseconds, 0.5), "p99_ms": percentile(milliseconds, 0.99)}))


if __name__ == "__main__":
    main()
