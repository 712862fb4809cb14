"""No-op tasks end to end - PARLController, scheduler, two actor processes, and back - and the round trip of one."""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from parlmesh.client import PARLController, TaskRequest
from parlmesh.testing.postgres import Cluster

from ...ground.samples import percentile

WARM_UP_TASKS = 2000
WARM_UP_TRIPS = 100
ROUNDS = 3
ACTOR_PROCESSES = 2
LONGEST_SECONDS = 60.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


async def measure(store: str, tasks: int, trips: int, in_flight: int, awake: bool) -> dict[str, Any]:
    with store_settings(store) as settings:
        scheduler = {
            "store": settings,
            "dispatch": {"awake_seconds": 1.0 if awake else 0.0},
        }
        async with PARLController() as controller:
            workers = await controller.initialize(ACTOR_PROCESSES, processes=ACTOR_PROCESSES, scheduler=scheduler)
            await run_noops(controller, WARM_UP_TASKS, in_flight)
            seconds = [await run_noops(controller, tasks, in_flight) for _ in range(ROUNDS)]
            await round_trips(controller, WARM_UP_TRIPS)
            milliseconds = await round_trips(controller, trips)
    return {
        "tasks_per_second": tasks / statistics.median(seconds),
        "roundtrip_p50_ms": percentile(milliseconds, 0.50),
        "roundtrip_p99_ms": percentile(milliseconds, 0.99),
        "rounds": [round(tasks / value) for value in seconds],
        "in_flight": in_flight,
        "workers": workers,
    }


@contextmanager
def store_settings(store: str) -> Iterator[dict[str, Any]]:
    """A fresh store on this machine, all equally durable: fsync, and synchronous_commit=on."""
    if store == "postgresql":
        with Cluster(fsync=True) as cluster:
            yield {"kind": store, "url": cluster.database()}
        return
    with tempfile.TemporaryDirectory() as folder:
        yield {"kind": store, "path": str(Path(folder) / "scheduler.sqlite")}


async def run_noops(controller: PARLController, tasks: int, in_flight: int) -> float:
    """Seconds from the first request to the last outcome; every task must have succeeded, each in its place."""
    requests = [TaskRequest("noop") for _ in range(tasks)]
    started = time.perf_counter()
    outcomes = await controller.execute_parallel(requests, limit=in_flight, timeout=LONGEST_SECONDS)
    seconds = time.perf_counter() - started
    assert len(outcomes) == tasks
    for index, outcome in enumerate(outcomes):
        assert outcome.index == index, outcome
        outcome.unwrap()
    return seconds


async def round_trips(controller: PARLController, trips: int) -> list[float]:
    """Milliseconds of one task at a time on an idle fleet."""
    found = []
    for _ in range(trips):
        started = time.perf_counter()
        (outcome,) = await controller.execute_parallel([TaskRequest("noop")], timeout=LONGEST_SECONDS)
        found.append((time.perf_counter() - started) * 1e3)
        outcome.unwrap()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("memory", "sqlite", "postgresql"), default="memory")
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--trips", type=int, default=1000)
    parser.add_argument("--loop", choices=tuple(LOOPS), default="uvloop", help="the client's; the services' is uvloop")
    parser.add_argument("--awake", action="store_true", help="the scheduler keeps the cores from sleeping")
    parser.add_argument("--in-flight", type=int, default=1500, help="the controller's default")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=LOOPS[arguments.loop]) as runner:
        found = runner.run(
            measure(arguments.store, arguments.tasks, arguments.trips, arguments.in_flight, arguments.awake)
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
