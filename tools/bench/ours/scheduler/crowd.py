"""A hundred single-slot workers: how soon `initialize(100)` has them, and 1,500 tasks of 100 ms on them."""

import argparse
import asyncio
import json
import time
from typing import Any

from parlmesh.client import PARLController, TaskRequest

from .tasks import LOOPS

WORKERS, TASKS, SLEEP_SECONDS = 100, 1500, 0.1
LONGEST_SECONDS = 60.0


async def measure(rounds: int, awake: bool) -> dict[str, Any]:
    began = time.perf_counter()
    async with PARLController() as controller:
        scheduler = {"dispatch": {"awake_seconds": 1.0 if awake else 0.0}}
        ready = await controller.initialize(WORKERS, scheduler=scheduler)
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
    parser.add_argument("--awake", action="store_true", help="the scheduler keeps the cores from sleeping")
    parser.add_argument("--loop", choices=tuple(LOOPS), default="uvloop", help="the client's; the services' is uvloop")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=LOOPS[arguments.loop]) as runner:
        found = runner.run(measure(arguments.rounds, arguments.awake))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
