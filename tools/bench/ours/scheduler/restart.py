"""kill -9 of a scheduler with much queued and running under load: seconds until the next one serves, nothing lost."""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from parlmesh.client import PARLController, TaskRequest
from parlmesh.testing import Process, free_port, wait_until_async

FINISHED, QUEUED, RUNNING = 20_000, 10_000, 500
LONGEST_SECONDS = 120.0


def scheduler(port: int, path: Path) -> Process:
    settings = (f"listen.port={port}", "metrics.port=null", f"store.path={path}")
    return Process("scheduler", *(part for setting in settings for part in ("--set", setting)))


def actor(address: str, name: str) -> Process:
    settings = (f"scheduler={address}", f"actor_id={name}", f"slots={RUNNING // 2}", "metrics.port=null")
    return Process("actor", *(part for setting in settings for part in ("--set", setting)))


async def run_load(controller: PARLController) -> None:
    tasks = [TaskRequest("sleep", {"seconds": 0.3})] * (QUEUED + 4 * RUNNING)
    for outcome in await controller.execute_parallel(tasks, limit=len(tasks), timeout=LONGEST_SECONDS):
        outcome.unwrap()


async def full(controller: PARLController) -> bool:
    """The queue is full and every slot busy."""
    return (await controller.get_statistics()).queued_tasks >= QUEUED


async def measure(kills: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        port, path = free_port(), Path(folder) / "scheduler.sqlite"
        process = scheduler(port, path)
        try:
            await asyncio.to_thread(process.wait_for, "serving", LONGEST_SECONDS)
            with actor(f"127.0.0.1:{port}", "a") as one, actor(f"127.0.0.1:{port}", "b") as other:
                for connecting in (one, other):
                    await asyncio.to_thread(connecting.wait_for, "connected", LONGEST_SECONDS)
                async with await PARLController.connect(f"127.0.0.1:{port}") as controller:
                    await controller.execute_parallel([TaskRequest("noop")] * FINISHED, timeout=LONGEST_SECONDS)
                    seconds = []
                    for _ in range(kills):
                        load = asyncio.ensure_future(run_load(controller))
                        await wait_until_async(partial(full, controller), LONGEST_SECONDS)
                        process.kill()
                        started = time.perf_counter()
                        with process:
                            process = scheduler(port, path)
                        await asyncio.to_thread(process.wait_for, "serving", LONGEST_SECONDS)
                        seconds.append(time.perf_counter() - started)
                        await load
        finally:
            with process:
                pass
    return {
        "restart_seconds": statistics.median(seconds),
        "longest_restart_seconds": max(seconds),
        "kills": kills,
        "queued": QUEUED,
        "running": RUNNING,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    print(json.dumps(asyncio.run(measure(parser.parse_args().kills))))


if __name__ == "__main__":
    main()
