"""A bare gRPC server: it answers one call with nothing, without any of our code around it."""

import asyncio
from typing import Any

from parlmesh.grpc_engine import choose_engine

choose_engine()

import grpc  # noqa: E402 - not before the engine is chosen
import grpc.aio  # noqa: E402

SERVICE, METHOD = "parlmesh.v1.SchedulerService", "GetStatistics"
LIFE_SECONDS = 600.0


async def main() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {METHOD: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.sleep(LIFE_SECONDS)


async def answer(request: bytes, context: Any) -> bytes:
    return b""


if __name__ == "__main__":
    asyncio.run(main())
