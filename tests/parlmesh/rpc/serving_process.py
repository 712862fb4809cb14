"""A small service for the tests of run_service: `python -m serving_process serve|stuck|defect [port]`."""

import asyncio
import sys

from parlmesh.config import ListenConfig, LogConfig
from parlmesh.rpc import run_service
from parlmesh.rpc.server import FleetServer
from parlmesh.security import SecurityConfig
from parlmesh.telemetry import configure_logging, get_logger

log = get_logger("parlmesh.test")


async def main(stop: asyncio.Event) -> None:
    ending = sys.argv[1]
    if ending == "defect":
        raise ValueError("a defect")
    listen = ListenConfig(port=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    async with FleetServer(listen=listen, security=SecurityConfig(), services=[]):
        log.info("ready", loop=type(asyncio.get_running_loop()).__module__)
        await stop.wait()
        log.info("stopping")
        if ending == "stuck":
            await asyncio.Event().wait()


if __name__ == "__main__":
    configure_logging(LogConfig(), "test")
    sys.exit(run_service(main))
