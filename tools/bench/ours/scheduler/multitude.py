"""A thousand connected workers for a while: all READY, heartbeats on time, tasks still served."""

import argparse
import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

from parlmesh.client import ActorState, PARLController, TaskRequest

PROCESSES = 2
LOOKS_PER_SECOND = 2
TASKS_PER_LOOK = 100
LONGEST_SECONDS = 60.0


async def measure(workers: int, seconds: float) -> dict[str, Any]:
    oldest, fewest, answered = 0.0, workers, 0
    async with PARLController() as controller:
        began = time.perf_counter()
        ready = await controller.initialize(workers, processes=PROCESSES)
        initialize_seconds = time.perf_counter() - began
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await asyncio.sleep(1 / LOOKS_PER_SECOND)
            actors = await controller.list_actors()
            now = datetime.now(UTC)
            oldest = max([oldest, *((now - actor.last_heartbeat_time).total_seconds() for actor in actors)])
            fewest = min(fewest, sum(actor.state is ActorState.READY for actor in actors))
            outcomes = await controller.execute_parallel(
                [TaskRequest("noop")] * TASKS_PER_LOOK, timeout=LONGEST_SECONDS
            )
            answered += sum(outcome.ok for outcome in outcomes)
    return {
        "workers": ready,
        "initialize_seconds": initialize_seconds,
        "held_seconds": seconds,
        "fewest_ready": fewest,
        "oldest_heartbeat_seconds": oldest,
        "answered_tasks": answered,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.workers, arguments.seconds))))


if __name__ == "__main__":
    main()
