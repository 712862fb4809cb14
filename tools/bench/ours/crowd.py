"""A hundred single-slot workers: how soon `initialize(100)` has them, and 1,500 tasks of 100 ms on them."""

import argparse
import asyncio
import json
import time
from typing import Any

from parlmesh.client import PARLController, TaskRequest

WORKERS, TASKS, SLEEP_SECONDS = 100, 1500, 0.1
LONGEST_SECONDS = 60.0


async def measure(rounds: int) -> dict[str, Any]:
    began = time.perf_counter()
    async with PARLController() as controller:
        ready = await controller.initialize(WORKERS)
        initialize_seconds = time.perf_counter() - began
        assert ready == WORKERS, ready
        # The first tasks of an actor load its handler.
        await sleep_through(controller, WORKERS)
        seconds = [await sleep_through(controller, TASKS) for _ in range(rounds)]
    return {
        "fanout_seconds": sorted(seconds)[len(seconds) // 2],
        "initialize_seconds": initialize_seconds,
        "rounds": [round(value, 3) for value in seconds],
        "workers": ready,
    }


async def sleep_through(controller: PARLController, tasks: int) -> float:
    requests = [TaskRequest("sleep", {"seconds": SLEEP_SECONDS}) for _ in range(tasks)]
    started = time.perf_counter()
    outcomes = await controller.execute_parallel(requests, timeout=LONGEST_SECONDS)
    seconds = time.perf_counter() - started
    for outcome in outcomes:
        outcome.unwrap()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    print(json.dumps(asyncio.run(measure(parser.parse_args().rounds))))


if __name__ == "__main__":
    main()
